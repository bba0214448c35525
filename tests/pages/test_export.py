import json
import sys
import zlib
from html import unescape

import numpy as np
import plotly.graph_objects as go
import pytest
from plots.test_figures import FIGURES

from sinkinterp.errors import InputError
from sinkinterp.pages import export
from sinkinterp.plots.theme import json_ready
from sinkinterp.table import Table

NASTY = "</script><img src=x onerror=alert(1)>"
TABLE = Table(
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


def test_a_table_goes_through_json_and_back():
    assert Table.from_dict(json.loads(json.dumps(TABLE.to_dict(), allow_nan=False))) == TABLE


def test_numbers_that_json_lacks_are_null():
    row = {"x": float("inf"), "y": float("nan"), "z": 1.5}
    assert Table.from_dict(Table("t", "", (row,)).to_dict()).rows == ({"x": None, "y": None, "z": 1.5},)


def test_notebooks_show_tables_with_their_words_escaped():
    html = TABLE._repr_html_()
    assert "<img" not in html and unescape(html).count(NASTY) == 3


def test_a_picture_without_kaleido_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "kaleido", None)
    with pytest.raises(InputError, match=r"pip install kaleido"):
        list(export.save_pictures({tmp_path / "x.png": go.Figure()}))
    assert not list(tmp_path.iterdir())


def test_a_picture_without_a_browser_says_which_are_missing(tmp_path, monkeypatch):
    def absent(*given, **options):
        raise RuntimeError("\n\nKaleido requires Google Chrome\n")

    monkeypatch.setattr(go.Figure, "to_image", absent)
    with pytest.raises(InputError, match="Chrome or Chromium"):
        list(export.save_pictures({tmp_path / "x.png": go.Figure()}))
    assert not list(tmp_path.iterdir())


def test_a_picture_is_what_the_browser_drew_and_is_drawn_again_only_where_it_shows_other_numbers(tmp_path, monkeypatch):
    asked, end = [], bytes(export.END)
    drawn = iter(ink.ljust(40) for ink in (b"ink", b"other ink", b"more ink"))  # a header has 33 bytes
    monkeypatch.setattr(
        go.Figure, "to_image", lambda figure, kind, **options: asked.append((kind, options)) or next(drawn) + end
    )
    written = []
    for height in (0.5, 0.5000001, 0.6):
        figure = go.Figure(go.Bar(x=["a"], y=np.array([height])), layout={"width": 700})
        written.append(list(export.save_pictures({tmp_path / "x.png": figure})))
    assert written == [[tmp_path / "x.png"], [], [tmp_path / "x.png"]]
    content = (tmp_path / "x.png").read_bytes()
    assert content.startswith(b"other ink") and content.endswith(end)
    assert asked == 2 * [("png", {"width": 700, "scale": export.SCALE})]


def test_the_mark_of_a_picture_is_a_chunk_of_png():
    mark = export._mark(go.Figure(), 2)
    size, text, check = int.from_bytes(mark[:4]), mark[4:-4], int.from_bytes(mark[-4:])
    assert size == len(text) - 4 and text.startswith(b"tEXtfigure\0") and check == zlib.crc32(text)
