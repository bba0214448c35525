import csv
import json
import sys
from html.parser import HTMLParser

import numpy as np
import plotly.graph_objects as go
import pytest
from plots.test_figures import FIGURES, HEADS

from sinkinterp.errors import InputError
from sinkinterp.pages import export
from sinkinterp.plots.jsonable import json_ready
from sinkinterp.plots.theme import themed
from sinkinterp.table import Table

NASTY = "</script><img src=x onerror=alert(1)>"
TABLE = Table(
    f"title {NASTY}", f"note {NASTY}",
    ({"word": f'a,"{NASTY}\n', "x": 0.1, "tide": -1e-9, "n": 3}, {"word": "=1", "x": None, "tide": 1 / 3, "n": 5}),
)  # fmt: skip


def loaded(path):
    return json.loads(path.read_text(), parse_constant=pytest.fail)  # no NaN, which JSON lacks


@pytest.mark.parametrize("draw", FIGURES.values(), ids=FIGURES)
def test_a_figure_goes_through_json_and_back(draw, tmp_path):
    figure = draw()
    path = export.save_figure(figure, tmp_path / "f.json")
    assert json_ready(go.Figure(loaded(path))) == json_ready(figure)


def test_json_holds_plain_lists_in_the_order_of_the_array(tmp_path):
    z = np.arange(6, dtype=np.int16).reshape(2, 3)
    export.save_figure(go.Figure(go.Heatmap(z=z, x=np.array([0.5, np.inf, 2]))), tmp_path / "f.json")
    (trace,) = json.loads((tmp_path / "f.json").read_text())["data"]
    assert trace["z"] == [[0, 1, 2], [3, 4, 5]] and trace["x"] == [0.5, None, 2.0]


def test_a_table_goes_through_json_and_back(tmp_path):
    assert Table.from_dict(loaded(export.save_table(TABLE, tmp_path / "t.json"))) == TABLE


def test_numbers_that_json_lacks_are_null(tmp_path):
    row = {"x": float("inf"), "y": float("nan"), "z": 1.5}
    path = export.save_table(Table("t", "", (row,)), tmp_path / "t.json")
    assert Table.from_dict(loaded(path)).rows == ({"x": None, "y": None, "z": 1.5},)


def test_csv_parses_back_to_the_bit(tmp_path):
    path = export.save_table(TABLE, tmp_path / "new" / "t.csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == TABLE.columns
    assert [row["word"] for row in rows] == TABLE.column("word")
    assert [float(row["tide"]) for row in rows] == TABLE.column("tide")
    assert [row["x"] for row in rows] == ["0.1", ""] and [int(row["n"]) for row in rows] == [3, 5]


class Tags(HTMLParser):
    def __init__(self, html):
        super().__init__()
        self.found, self.inside, self.text = [], "", ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.found.append(tag)
        self.inside = tag

    def handle_data(self, data):
        self.text += data if self.inside != "script" else ""


@pytest.mark.parametrize(
    ("save", "value"),
    [
        (export.save_table, TABLE),
        (export.save_figure, themed(go.Figure(go.Bar(x=[NASTY], y=[1], name=NASTY)), NASTY, caption=NASTY)),
    ],
)
def test_a_page_holds_hostile_words_as_text(save, value, tmp_path):
    read = Tags(save(value, tmp_path / "p.html").read_text())
    assert "img" not in read.found and "link" not in read.found
    assert read.text.count(NASTY) >= 2


def test_notebooks_show_tables_with_their_words_escaped():
    read = Tags(TABLE._repr_html_())
    assert "img" not in read.found and read.text.count(NASTY) == 3


@pytest.mark.parametrize(("save", "value"), [(export.save_figure, go.Figure()), (export.save_table, HEADS)])
def test_another_suffix_is_refused_with_those_there_are(save, value, tmp_path):
    with pytest.raises(InputError, match=r"suffix '\.xls' is none of \..*\.json") as error:
        save(value, tmp_path / "x.xls")
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_a_picture_without_kaleido_names_the_extra(kind, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "kaleido", None)
    with pytest.raises(InputError, match=r"pip install 'sinkinterp\[export\]'") as error:
        export.save_figure(go.Figure(), tmp_path / f"x.{kind}")
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())


def test_a_picture_without_a_browser_says_which_are_missing(tmp_path, monkeypatch):
    def absent(*given, **options):
        raise RuntimeError("\n\nKaleido requires Google Chrome\n")

    monkeypatch.setattr(go.Figure, "to_image", absent)
    with pytest.raises(InputError, match="Chrome or Chromium") as error:
        export.save_figure(go.Figure(), tmp_path / "x.png")
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())


def test_a_picture_is_what_the_browser_drew(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(go.Figure, "to_image", lambda figure, kind, **options: asked.append((kind, options)) or b"ink")
    assert export.save_figure(go.Figure(layout={"width": 700}), tmp_path / "x.pdf").read_bytes() == b"ink"
    assert asked == [("pdf", {"width": 700, "scale": export.SCALE})]
