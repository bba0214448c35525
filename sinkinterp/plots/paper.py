"""Figures as a paper prints them: their size in inches, letters of at most 8 points, no title and no menus."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape, unescape
from itertools import product
from math import ceil, sqrt
from typing import Any

import plotly.graph_objects as go

from ..checks import InputError, finite_number
from .theme import in_words

PER_INCH = 96  # pixels
LARGEST, SMALLEST = (points * PER_INCH / 72 for points in (8.0, 5.0))  # letters, in pixels
LINE = 1.25  # height of a line, in sizes of the font
WIDE, NARROW = frozenset("mwMW@%"), frozenset("iljtfr.,:;'|!()[]· ")  # letters of .95 and .42 sizes; others have .65
TOP, EDGE, GAP, BAR = 24, 6, 12, 10  # pixels: above a figure, around maps, between them, width of the colour bar
LABEL = 8  # characters of a token's label
PANEL, HEAD_OF, EVERY = "panel", "head", "every"  # in `meta`: of a trace, the map that it draws; of the figure, if
# it draws every head that was asked for and not the strongest alone


def check_size(width: float, height: float | None) -> None:
    """Raises InputError unless both are from 1 to 20 inches."""
    for name, size in {"width": width, "height": height}.items():
        if size is not None:
            finite_number(size, f"{name} of a figure for a paper, in inches,", least=1, most=20)


def for_paper(figure: go.Figure, width: float, height: float | None = None) -> go.Figure:
    """The figure in a size in inches. Attention maps become a grid: of every head that was asked for by name."""
    check_size(width, height)
    tiles = _tiles(figure)
    pixels = None if height is None else height * PER_INCH
    if tiles:
        return _grid(tiles, figure, width * PER_INCH, pixels)
    on_screen = (figure.layout.height or 550) - (figure.layout.margin.t or 80) + TOP
    drawn, font = go.Figure(figure), {"size": LARGEST}
    drawn.layout.title, drawn.layout.updatemenus, drawn.layout.sliders = {}, (), ()
    drawn.update_layout(
        width=width * PER_INCH, height=pixels or on_screen, font=font,
        margin={"l": 8, "r": 8, "t": TOP, "b": 8}, paper_bgcolor="white",
    )  # fmt: skip
    for axes in (drawn.update_xaxes, drawn.update_yaxes):
        axes(tickfont=font, title_font=font, automargin=True)
    bar = {"thickness": BAR, "lenmode": "fraction", "len": 1, "tickfont": font, "title": {"font": font}}
    drawn.update_coloraxes(colorbar=bar)
    return drawn.update_annotations(font=font)


@dataclass(frozen=True)
class _Tile:
    """One map of a grid: its traces, its title in one or two parts, the labels of its rows and of its columns."""

    traces: Sequence[Any]
    title: tuple[str, str]
    rows: Sequence[str]
    columns: Sequence[str]


def _tiles(figure: go.Figure) -> list[_Tile]:
    """The maps of a figure, head by head, and the panels of each head side by side."""
    every = isinstance(figure.layout.meta, Mapping) and figure.layout.meta.get(EVERY, False)
    maps = [trace for trace in figure.data if isinstance(trace.meta, Mapping) and PANEL in trace.meta]
    drawn: dict[tuple[str, str], list[Any]] = {}
    for trace in maps:
        if every or trace.visible is not False:
            drawn.setdefault((trace.meta[HEAD_OF], trace.meta[PANEL]), []).append(trace)
    heads = list(dict.fromkeys(head for head, _ in drawn))
    has_slot = any(len(traces) > 1 for traces in drawn.values())
    tiles = []
    for (head, panel), traces in sorted(drawn.items(), key=lambda item: heads.index(item[0][0])):
        rows = [_short(label) for label in traces[0].y]
        title = in_words(panel.rsplit("/", 1)[-1]), head
        tiles.append(_Tile(traces, title, rows, ["slot", "", *rows] if has_slot else rows))
    return tiles


def _short(label: str) -> str:
    """The token of a label, or its position where it has none, cut to eight characters."""
    place, _, word = unescape(label).partition(" ")
    return _cut(place if "-" in place or not word else word, LABEL)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: max(1, most - 1)]}…"


def _wide(text: str, font: float) -> float:
    """About how many pixels a text takes."""
    return font * sum(0.95 if letter in WIDE else 0.42 if letter in NARROW else 0.65 for letter in text)


@dataclass(frozen=True)
class _Plan:
    """Sizes of a grid of maps in pixels: of the picture, letters, a map, and the room that labels and titles take.

    across, down: the columns and rows of the grid. is_shared: whether all have the same labels, so that
    the first column and the last row show them. step: every step-th cell has its label.
    """

    width: float
    height: float
    font: float
    side: float
    label: float
    title: float
    across: int
    down: int
    is_shared: bool
    step: int

    @property
    def line(self) -> float:
        return LINE * self.font

    def from_left(self, column: int) -> float:
        labels = self.label * (1 if self.is_shared else column + 1)
        return EDGE + self.line + labels + column * (self.side + GAP)

    def from_top(self, row: int) -> float:
        return EDGE + (row + 1) * self.title + row * (self.side + GAP + self.label * (not self.is_shared))


def _planned(tiles: Sequence[_Tile], width: float, height: float | None) -> _Plan:
    """The largest letters of 5 to 8 points with a line a cell and whole titles; 5 points where there are none."""
    n_panels = len({tile.title[0] for tile in tiles})
    across = n_panels if n_panels > 1 else ceil(sqrt(len(tiles)))
    down, is_shared = ceil(len(tiles) / across), all(tile.rows == tiles[0].rows for tile in tiles)
    most = max(len(tile.columns) for tile in tiles)
    for font in (LARGEST - step * (LARGEST - SMALLEST) / 6 for step in range(7)):
        line, label = LINE * font, font + max(_wide(text, font) for tile in tiles for text in tile.columns)
        n_across, n_down = (1, 1) if is_shared else (across, down)
        beside = 2 * EDGE + 2 * line + n_across * label + across * GAP + BAR + _wide("0.00", font)
        side = (width - beside) / across
        title = line * (1 if all(_fits(tile, font, side) for tile in tiles) else 2)
        above = 2 * EDGE + line + down * title + n_down * label + (down - 1) * GAP
        side = side if height is None else min(side, (height - above) / down)
        has_room = all(_wide(unescape(part), font) <= side for tile in tiles for part in tile.title)
        if side / most >= line and has_room:
            break
    if side < 4 * font:
        raise InputError(f"{len(tiles)} maps do not fit into {width / PER_INCH:g} inches of width")
    whole = above + down * side if height is None else height
    step = max(1, ceil(line * most / side))
    return _Plan(width, whole, font, side, label, title, across, down, is_shared, step)


def _fits(tile: _Tile, font: float, room: float) -> bool:
    return _wide(unescape(" ".join(filter(None, tile.title))), font) <= room


def _lines(tile: _Tile, plan: _Plan) -> str:
    """The title of a map on one line, or on two, which are cut where they are too long."""
    if _fits(tile, plan.font, plan.side):
        return " ".join(filter(None, tile.title))
    lines = []
    for part in map(unescape, filter(None, tile.title)):
        most = next((n for n in range(len(part), 1, -1) if _wide(_cut(part, n), plan.font) <= plan.side), 1)
        lines.append(escape(_cut(part, most), quote=False))
    return "<br>".join(lines)


def _grid(tiles: Sequence[_Tile], figure: go.Figure, width: float, height: float | None) -> go.Figure:
    """The maps in rows and columns, with one colour bar that is as tall as they are."""
    plan = _planned(tiles, width, height)
    drawn = go.Figure(layout={"template": figure.layout.template, "width": width, "height": plan.height})
    drawn.update_layout(margin=dict.fromkeys("lrtb", 0), paper_bgcolor="white", font={"size": plan.font})
    for tile, (row, column) in zip(tiles, product(range(plan.down), range(plan.across)), strict=False):
        _add_map(drawn, tile, plan, row, column, is_last=(row + 1) * plan.across + column >= len(tiles))
    cell = max(len(tile.rows) / len(tile.columns) for tile in tiles)
    top, bottom = plan.from_top(0), plan.from_top(plan.down - 1) + plan.side * cell
    _add_text(drawn, plan, "query", EDGE + plan.line / 2, (top + bottom) / 2, textangle=-90)
    _add_text(drawn, plan, "key", plan.from_left(0) + plan.side / 2, bottom + plan.label + plan.line / 2)
    bar = figure.layout.coloraxis.to_plotly_json()
    title = bar.get("colorbar", {}).get("title", {}).get("text", "")
    end, ticks = plan.from_left(plan.across - 1) + plan.side + GAP, max(2, min(6, int((bottom - top) / plan.line / 2)))
    bar["colorbar"] = {
        "thickness": BAR, "lenmode": "pixels", "len": bottom - top, "xpad": 0, "ypad": 0, "x": end / width,
        "xanchor": "left", "y": 1 - top / plan.height, "yanchor": "top", "tickfont": {"size": plan.font},
        "nticks": ticks, "outlinewidth": 0, "title": {"text": title, "side": "right", "font": {"size": plan.font}},
    }  # fmt: skip
    return drawn.update_layout(coloraxis=bar)


def _add_map(figure: go.Figure, tile: _Tile, plan: _Plan, row: int, column: int, is_last: bool) -> None:
    """Adds a map at its place. `is_last`: whether no map stands below it, so that it has the labels of keys."""
    number = row * plan.across + column + 1
    at, n, rows = "" if number == 1 else str(number), len(tile.columns), len(tile.rows)
    offset, x, y = n - rows, plan.from_left(column), plan.from_top(row)
    for trace, start in zip(tile.traces, (offset, 0), strict=False):
        place = {"x0": start, "dx": 1, "y0": 0, "dy": 1, "xaxis": f"x{at}", "yaxis": f"y{at}"}
        figure.add_heatmap(z=trace.z, coloraxis="coloraxis", **place)
    has_slot = len(tile.traces) > 1
    has_room = offset * plan.side / n >= plan.line  # between the slot's label and that of the first token
    keys = [*range(has_slot), *range(offset if has_room or not has_slot else offset + plan.step, n, plan.step)]
    bare = {"showgrid": False, "zeroline": False, "ticks": "", "tickfont": {"size": plan.font}, "title": None}
    figure.layout[f"xaxis{at}"] = bare | _ticks(tile.columns, keys) | {
        "domain": [x / plan.width, (x + plan.side) / plan.width], "anchor": f"y{at}", "range": [-0.5, n - 0.5],
        "tickangle": -90, "showticklabels": is_last or not plan.is_shared,
    }  # fmt: skip
    ends = [1 - (y + plan.side * rows / n) / plan.height, 1 - y / plan.height]
    figure.layout[f"yaxis{at}"] = bare | _ticks(tile.rows, range(0, rows, plan.step)) | {
        "domain": ends, "anchor": f"x{at}", "range": [rows - 0.5, -0.5],
        "showticklabels": column == 0 or not plan.is_shared,
    }  # fmt: skip
    lines = _lines(tile, plan)
    height = plan.line * (1 + lines.count("<br>"))
    _add_text(figure, plan, lines, x + plan.side / 2, y - height / 2)


def _ticks(labels: Sequence[str], at: Sequence[int]) -> dict[str, Any]:
    return {"tickvals": [*at], "ticktext": [escape(labels[k], quote=False) for k in at]}


def _add_text(figure: go.Figure, plan: _Plan, text: str, x: float, y: float, textangle: float = 0) -> None:
    """Adds a text with its middle at a place in pixels from the left and from the top."""
    place = {"x": x / plan.width, "y": 1 - y / plan.height, "xref": "paper", "yref": "paper"}
    middle = {"xanchor": "center", "yanchor": "middle", "showarrow": False, "borderpad": 0}
    figure.add_annotation(text=text, textangle=textangle, **place, **middle)
