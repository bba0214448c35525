import json
import sys
from dataclasses import replace
from html import unescape

import numpy as np
import plotly.graph_objects as go
import pytest
from plots.test_figures import FIGURES
from refusals import refused
from sinkinterp._experiments.book.cards import json_ready

import sinkinterp as si
from sinkinterp.table import Table

NASTY = "</script><img src=x onerror=alert(1)>"
TABLE = Table.of(
    f"title {NASTY}", f"note {NASTY}",
    ({"word": f'a,"{NASTY}\n', "x": 0.1, "tide": -1e-9, "n": 3}, {"word": "=1", "x": None, "tide": 1 / 3, "n": 5}),
)  # fmt: skip


@pytest.mark.parametrize("draw", FIGURES.values(), ids=FIGURES)
def test_a_figure_goes_through_json_and_back(draw):
    plain = json_ready(draw())
    assert json_ready(go.Figure(json.loads(json.dumps(plain, allow_nan=False)))) == plain


def test_json_holds_plain_lists_in_the_order_of_the_array():
    z = np.arange(6, dtype=np.int16).reshape(2, 3)
    (trace,) = json_ready(go.Figure(go.Heatmap(z=z, x=np.array([0.5, np.inf, 2]))))["data"]
    assert trace["z"] == [[0, 1, 2], [3, 4, 5]] and trace["x"] == [0.5, None, 2.0]


def test_numbers_that_json_lacks_are_null():
    row = {"x": float("inf"), "y": float("nan"), "z": 1.5}
    assert Table.from_dict(Table.of("t", "", (row,)).to_dict()).records() == [{"x": None, "y": None, "z": 1.5}]


def test_notebooks_show_tables_with_their_words_escaped():
    html = TABLE._repr_html_()
    assert "<img" not in html and unescape(html).count(NASTY) == 3


def test_a_picture_without_kaleido_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "kaleido", None)
    refused(lambda: si.save(go.Figure(), tmp_path / "x.png"))
    assert not list(tmp_path.iterdir())


def test_a_picture_without_a_browser_says_which_are_missing(tmp_path, monkeypatch):
    def absent(*given, **options):
        raise RuntimeError("\n\nKaleido requires Google Chrome\n")

    monkeypatch.setattr(go.Figure, "to_image", absent)
    refused(lambda: si.save(go.Figure(), tmp_path / "x.png"))
    assert not list(tmp_path.iterdir())


def test_a_picture_is_what_the_browser_drew(tmp_path, monkeypatch):
    asked, content = [], b"\x89PNG\r\n\x1a\n".ljust(60)
    monkeypatch.setattr(go.Figure, "to_image", lambda figure, kind, **how: asked.append((kind, how)) or content)
    figure = go.Figure(go.Bar(x=["a"], y=np.array([0.5])))
    assert si.save(figure, tmp_path / "x.png", width=7) == tmp_path / "x.png"
    assert (tmp_path / "x.png").read_bytes() == content
    assert asked == [("png", {"width": 672, "scale": pytest.approx(300 / 96)})]


@pytest.fixture
def without_browser(monkeypatch):
    shown = []
    monkeypatch.setattr(go.Figure, "to_image", lambda figure, kind, **how: shown.append(figure) or b"ink")
    return shown


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg", "html", "csv", "json"])
def test_what_was_saved_is_replaced_whole(tmp_path, without_browser, suffix):
    table = replace(TABLE, draw=lambda table: go.Figure())
    file = si.save(table, tmp_path / f"x.{suffix}")
    first = file.read_bytes()
    file.write_bytes(b"other" * 100_000)
    si.save(table, file)
    assert len(file.read_bytes()) == len(first)


def test_a_figure_of_a_paper_has_its_size_in_inches_and_no_menus_and_leaves_the_figure_as_it_was(
    tmp_path, without_browser
):
    figure = si.attention_map("sinkinterp/demo-softmax", [[5, 7, 9, 11]])
    before = figure.to_plotly_json()
    si.save(figure, tmp_path / "x.pdf", width=3.25, height=2)
    (drawn,) = without_browser
    assert (drawn.layout.width, drawn.layout.height, drawn.layout.font.size) == (312, 192, pytest.approx(32 / 3))
    assert not drawn.layout.updatemenus and figure.layout.updatemenus and figure.to_plotly_json() == before


@pytest.mark.parametrize("what", [go.Figure(), 3, None, "text"])
def test_what_cannot_be_saved_as_that_is_refused_in_a_line(tmp_path, what):
    refused(lambda: si.save(what, tmp_path / "x.csv"))
    refused(lambda: si.save(go.Figure(), tmp_path / "x.pdf", width=0))
    assert not list(tmp_path.iterdir())
