"""Attention maps: what every query of a head gives to every key, and the score, cosine and norm product behind it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan
from typing import Any

import numpy as np
import plotly.graph_objects as go
import torch
from jaxtyping import Float, Int
from plotly.subplots import make_subplots
from torch import Tensor

from ..attention import QUANTITIES, SCORE, WEIGHT, Quantity, pooled
from ..metrics.importance import PATTERNS
from ..metrics.metric import Metric
from ..metrics.qk import MAPS
from ..plots.paper import EVERY, HEAD_OF, PANEL
from ..plots.theme import DIVERGING, MAGNITUDE, escaped, themed
from ..table import Table
from .heads import sinks_by_head, top_heads
from .readings import Readings, TokenText

Heads = Sequence[tuple[int, int]]  # layer and head
Maps = Float[np.ndarray, "map row column"]  # a row is a query and a column a key, or several of them
LIMIT = 2_000_000  # bytes of a figure as JSON
PAIR = 60  # bytes of a cell with all its numbers, at most, in a figure of one panel
FEW = 4  # heads that are shown in any case
LINE = 14  # pixels of height of a label; where they do not fit, plotly leaves out some
SLOT, GAP = "slot *", " "  # labels of the columns left of the first key
LOWEST, HIGHEST = 260, 640  # pixels of height of a map
WIDE = 1000  # pixels of width of all maps that stand side by side on a page
BESIDE = 260  # pixels of width for the labels of the queries and the colour bar


_METRICS = dict(zip(QUANTITIES, (PATTERNS, *MAPS), strict=True))


@dataclass(frozen=True, repr=False)
class HeadMaps:
    """Maps of some heads, mean over sequences, in one run of a model.

    heads: layer and head of each map. values: by name of the quantity; NaN where no query sees a key.
    length: of the sequences. slot: attention to the column that belongs to no token, if there is one. side: how many
    queries and keys a cell covers; of several it holds the largest value. alpha: importance of the first token.
    words: the texts of the tokens; without them, axes count positions.
    """

    heads: Heads
    values: Mapping[str, Maps]
    length: int
    slot: Float[np.ndarray, "map row"] | None = None
    side: int = 1
    alpha: Sequence[float] | None = None
    words: Sequence[str] | None = None

    def __repr__(self) -> str:
        cells = "" if self.side == 1 else f" in cells of {self.side} x {self.side}"
        return f"<HeadMaps: {len(self.heads)} heads, T={self.length}{cells}, {', '.join(self.values)}>"


def detail(
    alphas: Mapping[tuple[int, int], float], length: int, panels: int, *, all_of_them: bool
) -> tuple[Heads, int]:
    """Which heads a figure of at most `LIMIT` bytes shows, and how many tokens a cell of it covers.

    Without `all_of_them`, those with the largest alpha_1 that fit pair by pair, and at least `FEW`.
    """
    strongest = sorted(alphas, key=lambda head: -alphas[head])
    fitting = LIMIT // (PAIR * panels * _cells(length, 1))
    shown = sorted(strongest if all_of_them else strongest[: max(FEW, fitting)])
    sides = range(1, length + 1)
    return shown, next((s for s in sides if len(shown) * panels * PAIR * _cells(length, s) <= LIMIT), length)


def _cells(length: int, side: int) -> int:
    n = -(-length // side)
    return n * (n + 1) // 2


def attention_figure(panels: Mapping[str, HeadMaps], title: str, note: str = "", every: bool = False) -> go.Figure:
    """Maps side by side, such as before and after an edit, with menus of heads and quantities; a slot's column apart.

    every: whether a picture, which has no menus, shows all heads, and not the strongest alone.

    All panels have the same heads. If all have the same tokens, only the first one has the labels of the queries.
    """
    first, *_ = panels.values()
    names, labels = list(map(escaped, panels)), [_labels(maps) for maps in panels.values()]
    is_shared, longest = all(each == labels[0] for each in labels), max(map(len, labels))
    spacing = 0.06 if is_shared else 0.6 / (len(panels) + 3)
    figure = make_subplots(1, len(panels), subplot_titles=names, horizontal_spacing=spacing)
    shown = 0 if first.alpha is None else int(np.argmax(first.alpha))
    quantities = [q for q in QUANTITIES if all(q.name in maps.values for maps in panels.values())]
    data = {q: [_rows(z, q.decimals) for maps in panels.values() for z in maps.values[q.name]] for q in quantities}
    weights, slots = iter(data[WEIGHT]), []
    for column, (name, maps, words) in enumerate(zip(names, panels.values(), labels, strict=True), 1):
        for i, (layer, head) in enumerate(maps.heads):
            about = {"y": words, "visible": i == shown, "meta": {PANEL: name, HEAD_OF: f"{layer}.{head}"}}
            figure.add_trace(_heatmap(next(weights), _hover(maps, i), x=words, **about), 1, column)
            if maps.slot is not None:
                slots.append((_slot(maps.slot[i], **about), column))
    n_maps, has_slot = len(figure.data), bool(slots)
    for trace, column in slots:
        figure.add_trace(trace, 1, column)
    height = min(HIGHEST, max(LOWEST, 22 * longest))
    if len(panels) > 1:  # squares, whose side is what the page's width leaves to each
        squares = longest / (longest + 2 * has_slot)
        height = min(height, int(squares * WIDE * (1 - spacing * (len(panels) - 1)) / len(panels)))
    for column, (maps, words) in enumerate(zip(panels.values(), labels, strict=True), 1):
        across, down = _axes(maps, words, [SLOT, GAP] if has_slot else [], height)
        figure.update_xaxes(title="key", **across, row=1, col=column)
        are_named = {"showticklabels": column == 1 or not is_shared, "title": "query" if column == 1 else ""}
        figure.update_yaxes(scaleanchor=f"x{column if column > 1 else ''}", **are_named, **down, row=1, col=column)
    menus = []
    if len(first.heads) > 1:
        heads = [trace.meta[HEAD_OF] for trace in figure.data]
        visible = [{"visible": [of == head for of in heads]} for head in dict.fromkeys(heads)]
        named = zip(_names(panels), visible, strict=True)
        menus.append(_menu(0, shown, [{"label": n, "method": "restyle", "args": [args]} for n, args in named]))
    if len(quantities) > 1:
        buttons = [_quantity_button(quantity, data[quantity], list(range(n_maps))) for quantity in quantities]
        menus.append(_menu(len(menus), 0, buttons))
    bar: dict[str, Any] = {"title": {"text": quantities[0].name, "side": "right"}, "thickness": 12}
    if len(panels) == 1:  # a map is a square as high as the figure's inside, and its colour bar stands beside it
        bar |= {"lenmode": "fraction", "len": 1, "ypad": 0}
        figure.update_layout(width=height + BESIDE)
    else:
        bar |= {"lenmode": "pixels", "len": height, "y": 1, "yanchor": "top"}
    figure.update_layout(coloraxis={**_colours(quantities[0]), "colorbar": bar}, updatemenus=menus)
    themed(figure, title, height + 190 + 40 * len(menus), f"{_caption(first, has_slot)} {note}".strip())
    figure.layout.meta = {**figure.layout.meta, EVERY: every}
    return figure.update_layout(margin={"t": 90 + 40 * len(menus)})


def _labels(maps: HeadMaps) -> list[str]:
    """A label for each row: its position and its word; the first and last position of a cell."""
    labels = []
    for first in range(0, maps.length, maps.side):
        last = min(first + maps.side, maps.length) - 1
        place = str(first) if first == last else f"{first}-{last}"
        text = "" if maps.words is None else " ".join(map(shown_word, maps.words[first : last + 1]))
        labels.append(escaped(f"{place} {text if len(text) <= 18 else text[:17] + '…'}".strip()))
    return labels


def shown_word(word: str) -> str:
    """The label of a token on an axis: a dot for a space, also for that which begins a word."""
    return "".join("·" if c == " " else c if c.isprintable() else repr(c)[1:-1] for c in word)


def _rows(values: Float[np.ndarray, "row column"], decimals: int) -> list[list[float | None]]:
    """Rounded rows for JSON, without the NaN that end them; plotly leaves cells blank that a row does not have."""
    rows = []
    for row in values.astype(float).round(decimals):
        seen = np.flatnonzero(~np.isnan(row))
        cut = row[: seen[-1] + 1] if len(seen) else row[:0]
        rows.append([None if isnan(value) else value for value in cut.tolist()])
    return rows


def _ranks(weights: Float[np.ndarray, "row column"]) -> Int[np.ndarray, "row column"]:
    """1 for the column that a row gives most to."""
    order = np.argsort(-np.nan_to_num(weights, nan=-np.inf), axis=1, kind="stable")
    return order.argsort(axis=1) + 1


def _hover(maps: HeadMaps, i: int) -> list[Any]:
    """[weight, score, rank] of every cell, or [weight, rank] where scores are not known."""
    weights, scores = maps.values[WEIGHT.name][i], maps.values.get(SCORE.name)
    parts = [_rows(weights, 4)] if scores is None else [_rows(weights, 4), _rows(scores[i], 2)]
    ranks = _ranks(weights).tolist()
    return [[[*values, rank] for *values, rank in zip(*rows, strict=False)] for rows in zip(*parts, ranks, strict=True)]


def _heatmap(z: Any, hover: Any, **about: Any) -> go.Heatmap:
    says = _template(WEIGHT, bool(hover[0]) and len(hover[0][0]) > 2)
    shared = {"coloraxis": "coloraxis", "hoverongaps": False}
    return go.Heatmap(z=z, customdata=hover, hovertemplate=says, **shared, **about)


def _template(quantity: Quantity, has_scores: bool) -> str:
    """The text beside the pointer."""
    scores = "<br>score %{customdata[1]}" if has_scores else ""
    value = f"<br>{quantity.title} %{{z}}" if quantity not in (WEIGHT, SCORE) else ""
    rank = f"<br>rank %{{customdata[{1 + has_scores}]}} among the keys of this query"
    return f"query <b>%{{y}}</b><br>key <b>%{{x}}</b><br>weight %{{customdata[0]}}{scores}{value}{rank}<extra></extra>"


def _slot(weights: Float[np.ndarray, " row"], **about: Any) -> go.Heatmap:
    """The slot's column, which always shows attention, 0 to 1."""
    z = [[value] for value in np.nan_to_num(weights).astype(float).round(4).tolist()]
    says = "query <b>%{y}</b><br>to the slot, which is not a token<br>weight %{z}<extra></extra>"
    colours = {"zmin": 0, "zmax": 1, "colorscale": MAGNITUDE, "showscale": False}
    return go.Heatmap(z=z, x=[SLOT], hovertemplate=says, **colours, **about)


def _axes(maps: HeadMaps, labels: Sequence[str], before: Sequence[str], height: int) -> tuple[dict[str, Any], ...]:
    """One column and one row for each label, in squares; before them the places of a slot's column and a gap."""
    columns, n = [*before, *labels], len(labels)
    dense = n * LINE <= height
    ticks = {"type": "category", "showgrid": False, "zeroline": False, "constrain": "domain", "categoryorder": "array"}
    ticks |= {"tickfont": {"size": 11}, "dtick": 1} if dense else {"tickfont": {"size": 10}, "nticks": height // LINE}
    across = {"categoryarray": columns, "range": [-0.5, len(columns) - 0.5]}
    across |= {"tickangle": -90 if maps.words is not None or n > 12 else 0}
    across |= {"tickmode": "array", "tickvals": labels} if dense and maps.slot is None else {}
    down = {"categoryarray": list(labels), "range": [n - 0.5, -0.5], "constraintoward": "top"}
    return ticks | across, ticks | down


def _names(panels: Mapping[str, HeadMaps]) -> list[str]:
    """A name for each head, with its alpha_1 in every panel."""
    first, *_ = panels.values()
    alphas = [maps.alpha for maps in panels.values() if maps.alpha is not None]
    names = []
    for i, (layer, head) in enumerate(first.heads):
        values = " → ".join(f"{alpha[i]:.2f}" for alpha in alphas)
        names.append(f"layer {layer}, head {head}" + (f": alpha_1 {values}" if values else ""))
    return names


def _menu(above: int, active: int, buttons: list[dict[str, Any]]) -> dict[str, Any]:
    """A menu over the maps and over `above` other menus: side by side, they would overlap on a narrow screen."""
    place = {"x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "pad": {"b": 24 + 40 * above}}
    return {"type": "dropdown", "active": active, "buttons": buttons, "showactive": True, **place}


def _quantity_button(quantity: Quantity, values: list[Any], traces: list[int]) -> dict[str, Any]:
    colours = {f"coloraxis.{name}": value for name, value in _colours(quantity).items()}
    maps = {"z": values, "hovertemplate": _template(quantity, has_scores=True)}
    args = [maps, colours | {"coloraxis.colorbar.title.text": quantity.name}, traces]
    return {"label": quantity.title, "method": "update", "args": args}


def _colours(quantity: Quantity) -> dict[str, Any]:
    """The colour axis of a quantity, from its lower to its upper bound, or as its values need."""
    scale = MAGNITUDE if quantity.low == 0 else DIVERGING
    if quantity.high is not None:
        return {"colorscale": scale, "cmid": None, "cauto": False, "cmin": quantity.low, "cmax": quantity.high}
    return {"colorscale": scale, "cmin": None, "cmax": None, "cauto": True, "cmid": None if quantity.low == 0 else 0}


def _caption(maps: HeadMaps, has_slot: bool) -> str:
    cell = "" if maps.side == 1 else f" A cell covers {maps.side} x {maps.side} tokens and holds their largest value."
    slot = " slot *: the column that belongs to no token." if has_slot else ""
    return f"Every query (row) over the keys that it sees (columns); positions count from 0.{cell}{slot}"


def maps_of_strongest(report: Readings, epsilon: float = 0.3, token_text: TokenText | None = None) -> Table:
    """The heads of the report, the strongest sink first; the figure has their maps, mean over sequences.

    Raises InputError where the instrument MAPS was not measured.
    """
    table = sinks_by_head(report, epsilon)
    strongest = top_heads(table, len(table.frame))
    patterns = report.extra(PATTERNS)
    length = patterns.shape[-2]
    by_layer = zip(report.attention_layers, report.alpha().nanmean(0).tolist(), strict=True)
    alphas = {(layer, head): alpha for layer, row in by_layer for head, alpha in enumerate(row)}
    heads, side = detail(alphas, length, 1, all_of_them=False)
    places = [report.attention_layers.index(layer) for layer, _ in heads], [head for _, head in heads]

    def mean(metric: Metric) -> Float[Tensor, "map row column"]:
        return report.extra(metric).nanmean(0)[places]

    pairs = {each: mean(metric)[..., -length:] for each, metric in _METRICS.items() if report.has(metric)}
    unseen = pairs[SCORE].isnan() if SCORE in pairs else torch.ones(length, length, dtype=torch.bool).triu(1)
    pairs[WEIGHT] = pairs[WEIGHT].masked_fill(unseen, torch.nan)
    slot = mean(PATTERNS)[..., :-length]
    cells = {each.name: pooled(values, side).numpy() for each, values in pairs.items()}
    column = pooled(slot, side).numpy()[..., 0] if slot.numel() else None
    words = list(map(token_text or str, report.tokens[0].tolist())) if len(report.tokens) == 1 else None
    maps = HeadMaps(heads, cells, length, column, side, [alphas[head] for head in heads], words)
    title = f"Attention: {which_heads(heads, len(alphas))}"
    return replace(strongest, draw=lambda table: attention_figure({"": maps}, title, table.note))


def which_heads(shown: Heads, of: int) -> str:
    """Which of the heads that were asked for a figure shows."""
    if len(shown) == 1:
        return f"layer {shown[0][0]}, head {shown[0][1]}"
    return f"{of} heads" if len(shown) == of else f"the {len(shown)} of {of} heads with the strongest sinks"
