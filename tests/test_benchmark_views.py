"""The table of pages is whole at a size at which its figures mean nothing; nothing here is timed."""

import json

import pytest

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from benchmarks import views


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
