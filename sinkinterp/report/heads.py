"""Sinks by head, position, token and threshold; why queries look there (angle or length?), and what heads write.

The first key beside the others: Gu et al. 2025, Figures 2 and 15-18.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from html import escape
from itertools import product
from typing import Any

import numpy as np
import plotly.graph_objects as go
import torch
from jaxtyping import Bool
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots
from torch import Tensor

from .. import table as col
from ..attention import maps
from ..checks import whole_number
from ..data.tokens import PAD
from ..metrics.estimates import COSINES as COSINE_RANGE, SHARES, SIZES, estimate_cells, mean_cells
from ..metrics.importance import check_epsilon, epsilons_of, sink_grid, sink_tokens
from ..metrics.qk import QK_ANGLES, QK_NORM_PRODUCTS, score_gap
from ..metrics.residuals import KEY_RANK, UPDATE_RANK, is_broadcast, is_nop
from ..plots import theme
from ..plots.theme import LIGHT, colour, faded, grid_of, heat_map, positive_axis, themed, unique_values
from ..table import ALPHA_1, HEAD, KEY_RATIO, LAYER, NULL, SINK_RATE, VALUE_RATIO, Cell, Table
from .readings import Readings, TokenText, protocol_note

SIDE = 480  # points, at most
LARGEST_CELL = 28
HOVER = {
    NULL: "uniform attention: %%{customdata[%d]:.3f}",
    SINK_RATE: "sink rate %%{customdata[%d]:.1%%}",
    VALUE_RATIO: "value ratio %%{customdata[%d]:.2f}",
    KEY_RATIO: "key ratio %%{customdata[%d]:.2f}",
}  # what points of the map of heads say, by column


def sinks_by_head(report: Readings, epsilon: float = 0.3) -> Table:
    """Importance of the first position per layer and head, with its kv head's value- and key-norm ratio."""
    check_epsilon(epsilon)
    values, keys = report.value_ratio(), report.key_ratio()
    group = _group(report)

    def row(i: int, head: int) -> dict[str, Cell]:
        alpha = report.alpha()[:, i, head]
        return {
            **mean_cells(ALPHA_1, alpha, SHARES),
            NULL: report.null_alpha()[:, i, head].mean().item(),
            SINK_RATE: (alpha > epsilon).float().mean().item(),
            VALUE_RATIO: values[:, i, head // group].mean().item(),
            KEY_RATIO: keys[:, i, head // group].mean().item(),
        }

    title = "Importance of the first position per head"
    return Table.of(title, protocol_note(report, epsilon), rows_by_head(report, row), heads_overview)


def score_gaps_by_head(report: Readings, epsilon: float = 0.3) -> Table:
    """Why queries look at the first key, per head: its angle or its length (Gu et al. 2025, Figures 2 and 15-18).

    The score gap of the first key over the others is split into what the cosine and what the norms explain. Raises
    InputError where the instrument GEOMETRY was not measured.
    """
    angles, products = report.extra(QK_ANGLES), report.extra(QK_NORM_PRODUCTS)
    gap, by_angle, by_norms = score_gap(angles, products)

    def row(i: int, head: int) -> dict[str, Cell]:
        cells: dict[str, Cell] = {ALPHA_1: report.alpha()[:, i, head].nanmean().item()}
        for j, key in enumerate(KEYS):
            cells |= mean_cells(f"{COSINE}, {key}", angles[:, i, head, j], COSINE_RANGE)
            cells[f"{NORM_PRODUCT}, {key}"] = products[:, i, head, j].nanmean().item()
        return {
            **cells,
            **mean_cells("score gap", gap[:, i, head]),
            "by angle": by_angle[:, i, head].nanmean().item(),
            "by norms": by_norms[:, i, head].nanmean().item(),
        }

    explained = "gap: mean cosine times mean product of lengths, the first key's less the others'; by angle + by norms"
    note = f"{protocol_note(report, epsilon)}; {explained}; {SCALED}"
    return Table.of("Angle or length? Queries and the first key per head", note, rows_by_head(report, row), by_layer)


def writes_by_head(report: Readings, epsilon: float = 0.3) -> Table:
    """A sink with a short value writes next to nothing (no-op); one with a long value broadcasts it.

    Stable ranks are of the keys, and of what the head returns (the output projection then makes its update of it); 1 is
    one direction for all positions.
    Source: Fesser, arXiv 2606.08105. Raises InputError where the instrument GEOMETRY was not measured.
    """
    keys, updates, ratios = report.extra(KEY_RANK), report.extra(UPDATE_RANK), report.value_ratio()
    group = _group(report)

    def row(i: int, head: int) -> dict[str, Cell]:
        alpha, ratio = report.alpha()[:, i, head].mean(), ratios[:, i, head // group]
        return {
            ALPHA_1: alpha.item(),
            **mean_cells(VALUE_RATIO, ratio, SIZES),
            **mean_cells("stable rank of keys", keys[:, i, head // group], SIZES),
            **mean_cells("stable rank of update", updates[:, i, head], SIZES),
            KIND: _kind(ratio.mean()) if alpha > epsilon else "none",
        }

    explained = "update: before the output projection; no-op: value ratio below 0.2; broadcast: from 0.8 to 1.25"
    note = f"{protocol_note(report, epsilon)}; {explained}"
    return Table.of("What do heads write?", note, rows_by_head(report, row), writes_overview)


def writes_overview(table: Table) -> go.Figure:
    """The value ratio of every head with a sink by layer and head; from `writes_by_head`. Other heads stay empty."""
    frame = table.frame.assign(**{VALUE_RATIO: table.frame[VALUE_RATIO].where(table.frame[KIND] != "none")})
    shown = replace(table, frame=frame)
    hover = "layer %{y}, head %{x}: %{z:.3f}<extra></extra>"
    figure = heat_map(shown, VALUE_RATIO, zmin=0, zmax=1.25, hoverongaps=False, hovertemplate=hover)
    caption = "The length of the first token's value over the others', of heads with a sink; empty: no sink."
    return _themed(figure, table, caption)


def _themed(figure: go.Figure, table: Table, caption: str) -> go.Figure:
    """The figure of a map with a row for each layer, as high as these need."""
    n_layers = len(unique_values(table, LAYER))
    return themed(figure, table.title, 200 + n_layers * max(16, min(36, 480 // n_layers)), f"{caption} {table.note}")


def rows_by_head(report: Readings, row: Callable[[int, int], dict[str, Cell]]) -> tuple[dict[str, Cell], ...]:
    """A row per layer and query head; `row` gets the index of the layer among those that attend, and the head."""
    places = product(enumerate(report.attention_layers), range(report.importance.shape[2]))
    return tuple({LAYER: layer, HEAD: head, **row(i, head)} for (i, layer), head in places)


def top_heads(table: Table, most: int = 12) -> Table:
    """The `most` rows with the largest alpha_1, largest first."""
    strongest = table.largest(ALPHA_1, whole_number(most, "most", 1))
    some = f"{len(strongest.frame)} of {len(table.frame)} with the largest alpha_1"
    asks = table.title.endswith("?")
    return replace(strongest, title=f"{table.title} The {some}" if asks else f"{table.title}: the {some}")


def _group(report: Readings) -> int:
    """How many query heads share a kv head."""
    return report.importance.shape[2] // report.value_norms.shape[2]


def _kind(value_ratio: torch.Tensor) -> str:
    return "no-op" if is_nop(value_ratio) else "broadcast" if is_broadcast(value_ratio) else "between"


def heads_svg(table: Table) -> str:
    """alpha_1 of every head, a row per layer, dark for much; from `sinks_by_head`."""
    layers, grid = unique_values(table, LAYER), grid_of(table, ALPHA_1).to_numpy()
    side = max(4, min(LARGEST_CELL, SIDE // max(grid.shape)))
    colours = iter(sample_colorscale([*LIGHT.sequential], grid.clip(0, 1).ravel().tolist()))
    cells = "".join(
        f'<rect x="{head * side}" y="{i * side}" width="{side - 1}" height="{side - 1}" fill="{next(colours)}">'
        f"<title>layer {layers[i]}, head {head}: {alpha:.3f}</title></rect>"
        for (i, head), alpha in np.ndenumerate(grid)
    )
    height, width = (n * side for n in grid.shape)
    label = escape(f"alpha_1 of {len(layers)} layers (down) x {grid.shape[1]} heads (across), 0 to 1")
    return (
        f'<figure style="margin:0"><svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'role="img" aria-label="{label}">{cells}</svg><figcaption><small>{label}</small></figcaption></figure>'
    )


def heads_overview(table: Table) -> go.Figure:
    """Importance of the first position by layer and head; from `sinks_by_head`, its rows in any order.

    Points say what else the table has of it. Heads that are missing stay empty.
    """
    said = [column for column in HOVER if column in table.frame]
    told = ("layer %{y}, head %{x}", "alpha_1 %{z:.3f}", *(HOVER[column] % i for i, column in enumerate(said)))
    hover: dict[str, Any] = {"hovertemplate": "<br>".join(told) + "<extra></extra>", "hoverongaps": False}
    hover |= {"customdata": np.stack([grid_of(table, column) for column in said], -1)} if said else {}
    figure = heat_map(table, ALPHA_1, zmin=0, zmax=1, **hover)
    caption = "Importance of the first position: mean attention from the queries that can see it, over sequences."
    return _themed(figure, table, caption)


KIND = "kind of sink"
COSINE, NORM_PRODUCT = maps.COSINE.name, maps.NORM_PRODUCT.name
SCALED = "norm product: |q| |k| times the scale of the scores, the score at a cosine of 1; bias and softcap left out"
KEYS = ("first key", "others")
UNITS = {COSINE: maps.COSINE.title, NORM_PRODUCT: f"{maps.NORM_PRODUCT.title} (units of the score)"}


def by_layer(table: Table) -> go.Figure:
    """Mean cosine and norm product with the first key and with others, a point per head; from `score_gaps_by_head`."""
    figure = make_subplots(1, 2, subplot_titles=list(UNITS.values()), horizontal_spacing=0.12)
    places = zip(table.frame[LAYER], table.frame[HEAD], strict=True)
    heads = [f"layer {layer}, head {head}" for layer, head in places]
    points = {"boxpoints": "all", "jitter": 0.4, "pointpos": 0}
    said = {"text": heads, "hovertemplate": "%{text}: %{y:.3g}<extra></extra>"}
    for i, key in enumerate(KEYS):
        about = {"name": key, "legendgroup": key, "offsetgroup": key, "line": {"color": colour(i), "width": 1}}
        about |= {"marker": {"color": colour(i), "size": 6, "symbol": ("circle", "square")[i]}}
        for j, quantity in enumerate(UNITS):
            y, place = table.numbers(f"{quantity}, {key}"), {"row": 1, "col": j + 1}
            figure.add_box(
                x=table.frame[LAYER].tolist(), y=y, fillcolor=faded(colour(i)), **about, **points, **said, **place
            )
    figure.update_xaxes(title="layer", type="category")
    products = [value for key in KEYS for value in table.numbers(f"{NORM_PRODUCT}, {key}")]
    figure.update_yaxes(title=UNITS[COSINE], range=[-1.05, 1.05], zeroline=True, row=1, col=1)
    figure.update_yaxes(title=UNITS[NORM_PRODUCT], **positive_axis(products), row=1, col=2)
    figure.update_layout(boxmode="group")
    caption = (
        "A point per head: mean over queries of the cosine, and of the product of norms, with the first key and with "
        "the other keys. Boxes: quartiles over heads. A sink by angle parts the first panel, one by length the second."
    )
    return themed(figure, table.title, 460, f"{caption} {table.note}")


FOLLOWERS = 8  # queries that can see a later position, its own among them, for it to be judged
EPSILONS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
ALPHA, NULL_ALPHA, LARGEST_OTHER = "alpha", "null alpha", "largest other"
_LAST = "few queries see the last positions, so numbers are high there, also under uniform attention"


def sinks_by_position(report: Readings, epsilon: float = 0.3) -> Table:
    """Sink rate and mean importance of every measured position, beside the null."""

    def row(position: int) -> dict[str, Cell]:
        return {
            col.POSITION: position,
            "paper": f"Sink_{position + 1}",
            **estimate_cells(SINK_RATE, report.sink_rate(position, epsilon)),
            "null rate": report.null_sink_rate(position, epsilon),
            ALPHA: report.alpha(position).nanmean().item(),
            NULL_ALPHA: report.null_alpha(position).nanmean().item(),
        }

    rows = tuple(map(row, report.positions))
    return Table.of("Sink rate by position", f"{protocol_note(report, epsilon)}; {_LAST}", rows, by_position)


def sinks_by_epsilon(report: Readings, epsilon: float = 0.3, epsilons: Iterable[float] | float = EPSILONS) -> Table:
    """Sink_1 over epsilon beside uniform attention's (Gu et al. 2025, Figure 3): how much the threshold decides."""
    thresholds = epsilons_of(epsilons)
    rates, nulls = (sink_grid(values, thresholds) for values in (report.importance, report.null))
    first = report.column_of(0)

    def row(i: int) -> dict[str, Cell]:
        others = [rate for j, rate in enumerate(rates[i].tolist()) if j != first]
        return {
            col.EPSILON: thresholds[i],
            **estimate_cells(col.SINK_1, report.sink_rate(0, thresholds[i])),
            NULL: nulls[i, first].item(),
            LARGEST_OTHER: max(others, default=None),
        }

    rows = tuple(map(row, range(len(thresholds))))
    return Table.of("Sink_1 over epsilon", f"{protocol_note(report, epsilon)}; {_LAST}", rows, over_epsilon)


def followed(report: Readings) -> Bool[Tensor, "sequence pos"]:
    """The tokens that at least `FOLLOWERS` queries of their own sequence can follow, their own query among them."""
    lengths = (report.tokens >= 0).sum(1, keepdim=True)
    return torch.arange(report.tokens.shape[1]) <= lengths - FOLLOWERS


def sinks_by_token(report: Readings, epsilon: float = 0.3, token_text: TokenText = str, most: int = 10) -> Table:
    """The tokens that are sinks most often, those at the first position and later ones apart.

    A token's share is that of its (occurrence, layer, head) above epsilon. Later positions count where at least
    `FOLLOWERS` queries of their sequence can follow them: at the very end, a token's own query decides alone. Raises
    InputError where some positions were not measured.
    """
    report.alpha(report.protocol.length - 1)
    end = max(2, report.protocol.length - FOLLOWERS + 1)
    always = 2 if end == 2 else 1  # where all texts are short, the second position counts all the same
    counts = followed(report) | (torch.arange(report.tokens.shape[1]) < always)
    ids = report.tokens.masked_fill(~counts, PAD)
    rows: list[dict[str, Cell]] = []
    for place, chosen in (("first", slice(0, 1)), ("later", slice(1, end))):
        tokens = sink_tokens(report.importance[..., chosen], ids[:, chosen], epsilon)
        null_of_those = report.null.masked_fill(~counts[:, None, None], torch.nan)[..., chosen]
        null = sink_grid(null_of_those, (epsilon,)).nanmean().item()
        for sink in [sink for sink in tokens if sink.share > 0][:most]:
            rows.append({"place": place, "token": sink.token, "text": token_text(sink.token)})
            rows[-1] |= {"occurrences": sink.occurrences, "share of heads": sink.share, NULL: null}
    places = f"null: that place under uniform attention; later: positions 1 to {end - 1}"
    places += "" if always == 2 else f", where {FOLLOWERS} queries of a text can follow them"
    return Table.of("Which tokens are sinks?", f"{protocol_note(report, epsilon)}; {places}", tuple(rows))


def by_position(table: Table) -> go.Figure:
    """Importance of every position beside the null, and its sink rate; from `sinks_by_position`."""
    return theme.sweep_figure(table, col.POSITION, (ALPHA, SINK_RATE)).update_yaxes(**theme.SHARE)


def over_epsilon(table: Table) -> go.Figure:
    """Sink_1 over its threshold beside uniform attention's, and the largest other rate; from `sinks_by_epsilon`."""
    return theme.sweep_figure(table, col.EPSILON, (col.SINK_1, LARGEST_OTHER)).update_yaxes(**theme.PERCENT)
