"""A file that people asked for holds what they asked for and no more, and replaces only what they let it replace."""

import json

import pandas
import plotly.graph_objects as go
import pytest

import sinkinterp as si
from sinkinterp.pages.report import Page
from sinkinterp.table import Table

ROWS = [{"token": token, "alpha": number} for token, number in (("=1+1", -0.5), ("+", 2.0), ("the", None))]
TABLE = Table.of("a", "b", ROWS, lambda table: go.Figure())


@pytest.fixture(scope="module")
def report():
    return si.measure("sinkinterp/demo-softmax", [[3, 1, 4, 1, 5, 2, 6]])


def test_files_hold_what_is_saved_and_no_more(report, tmp_path, monkeypatch):
    monkeypatch.setattr(go.Figure, "to_image", lambda *_, **__: b"picture")
    for what, name, expected in (
        (report, "a.csv", report.to_pandas().to_csv(index=False).encode()),
        (report, "a.json", json.dumps(report.to_dict()).encode()),
        (TABLE, "b.md", TABLE.to_markdown().encode()),
        (TABLE, "b.tex", TABLE.to_latex().encode()),
        *((go.Figure(), f"c.{kind}", b"picture") for kind in ("png", "svg", "pdf")),
        (Page("<!doctype html>", "a"), "d.html", b"<!doctype html>"),
    ):
        for _ in range(2):  # over the first one
            assert si.save(what, tmp_path / name).read_bytes() == expected, name
    assert json.loads(si.save(TABLE, tmp_path / "b.json").read_text()) == TABLE.to_dict()


def test_no_cell_of_a_csv_file_is_a_formula(tmp_path):
    frame = pandas.read_csv(si.save(TABLE, tmp_path / "b.csv"))
    assert frame["token"].tolist() == ["'=1+1", "'+", "the"] and frame["alpha"].tolist()[:2] == [-0.5, 2.0]
