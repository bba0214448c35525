"""The table of pages is whole at a size at which its figures mean nothing; nothing here is timed."""

import json

import pytest

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from benchmarks import views
from sinkinterp.attention.maps import WEIGHT


@pytest.mark.usefixtures("browser")
def test_every_row_has_a_figure_and_a_verdict_and_the_promises_are_those_that_were_made(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(views, "told", lambda result, quick: result)
    views.main(repeats=1, quick=True, json_out=tmp_path / "figures.json")
    found = json.loads((tmp_path / "figures.json").read_text())
    targets = [(row["target"], row["unit"]) for row in found["rows"] if row["target"] is not None]
    many, long = [(12, "MB"), (5, "s"), (2, "s"), (150, "ms")], [(4, "MB"), (5, "s"), (1.5, "s"), (200, "ms")]
    assert targets == many + long
    for row in found["rows"]:
        expected = "" if row["target"] is None else "met" if row["figure"] <= row["target"] else "missed"
        assert row["figure"] > 0 and row["verdict"] == expected, row
    printed = capsys.readouterr().out
    assert "measured earlier and not in this run" in " ".join(found["protocol"].split()) and "zoom to a tile" in printed


def test_a_small_size_has_no_target_and_its_row_is_printed_at_once(capsys):
    result = views.row("a page", 3.0, "MB", 2.0)
    assert views.told(result, quick=False) == result and result.verdict == "missed"
    small = views.told(result, quick=True)
    assert (small.figure, small.target, small.verdict) == (3.0, None, "")
    assert capsys.readouterr().err == "a page: 3 MB missed\na page: 3 MB\n"


def test_the_maps_that_are_measured_are_peaked():
    drawn = views.random_atlas(2, 3, 37, width=4)
    weights = drawn.states[0].channels[WEIGHT][:, 0, -1]
    assert weights.shape == (6, 37) and (weights.max(1) > 3 / 37).all()
