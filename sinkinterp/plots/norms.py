"""Norms by block: the first token's beside the others' (Gu et al. 2025, Figures 2 top, 7, 8, 11 to 14, 29)."""

from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..table import Table
from .columns import BLOCK, MODEL, QUANTITY
from .models import model_numbers
from .theme import GREY, colour, escaped, themed
from .traces import MARKERS, error_bars, positive_axis, series_style, unique_values

KIND = "tokens"
NORM = "norm"
RESIDUAL = "residual"
FIRST_TOKEN = "first token"
OTHER_TOKENS = "other tokens"
RATIO = "ratio"
BLOCK_AXIS = "block (0: embedding)"
EQUAL = {"y": 1, "line": {"color": GREY, "dash": "dot"}}


def by_kind(table: Table) -> go.Figure:
    """Norms of residuals, keys and values by block, a line per kind of token; from `tables.norms_by_kind`."""
    quantities = unique_values(table, QUANTITY)
    figure = make_subplots(1, len(quantities), subplot_titles=[f"{escaped(q)} norm" for q in quantities])
    for i, kind in enumerate(unique_values(table, KIND)):
        for j, quantity in enumerate(quantities):
            rows = table.where(**{QUANTITY: quantity, KIND: kind})
            figure.add_scatter(
                x=rows.column(BLOCK),
                y=rows.numbers(NORM),
                error_y=error_bars(rows, NORM),
                name=escaped(kind),
                legendgroup=escaped(kind),
                showlegend=j == 0,
                row=1,
                col=j + 1,
                **series_style(i, 7),
            )
    for j, quantity in enumerate(quantities):
        rows, place = table.where(**{QUANTITY: quantity}), {"row": 1, "col": j + 1}
        figure.update_xaxes(title=BLOCK_AXIS if quantity == RESIDUAL else "layer", **_ticks(rows), **place)
        figure.update_yaxes(**positive_axis(rows.numbers(NORM)), **place)
    figure.update_yaxes(title="mean Euclidean norm", col=1)
    caption = "Mean norm of residuals, keys and values by kind of token; keys and values over kv heads."
    return themed(figure, table.title, caption=f"{caption} {table.note}")


def ratios(table: Table) -> go.Figure:
    """The first token's residual norm over the others', a line per model; from `tables.residual_norms_by_block`."""
    figure = go.Figure()
    for model, i in model_numbers(unique_values(table, MODEL)).items():
        rows = table.where(**{MODEL: model})
        figure.add_scatter(
            x=rows.column(BLOCK),
            y=rows.numbers(RATIO),
            error_y=error_bars(rows, RATIO),
            name=escaped(model),
            **series_style(i, 8),
        )
    figure.add_hline(**EQUAL)
    figure.update_xaxes(title=BLOCK_AXIS, **_ticks(table))
    figure.update_yaxes(title="residual norm, first token / others", **positive_axis([*table.numbers(RATIO), 1.0]))
    caption = "Norm of the first token's residual over the mean norm of the other tokens; dotted: equal."
    return themed(figure, "Residual-norm ratio by block", caption=f"{caption} {table.note}")


def residual_norms(table: Table) -> go.Figure:
    """First token's residual norm, the others', and their ratio, by model; from `tables.residual_norms_by_block`."""
    titles = ("norm: first token (solid), other tokens (dotted)", "ratio, with 95% interval")
    figure = make_subplots(1, 2, subplot_titles=titles, horizontal_spacing=0.1)
    for model, i in model_numbers(unique_values(table, MODEL)).items():
        _add_residual_norms(figure, table.where(**{MODEL: model}), str(model), i)
    figure.add_hline(**EQUAL, row=1, col=2)
    figure.update_xaxes(title=BLOCK_AXIS, **_ticks(table))
    norms = [*table.numbers(FIRST_TOKEN), *table.numbers(OTHER_TOKENS)]
    figure.update_yaxes(title="residual norm", **positive_axis(norms), row=1, col=1)
    figure.update_yaxes(title="first / others", **positive_axis([*table.numbers(RATIO), 1.0]), row=1, col=2)
    caption = "Mean norm of the residual stream by block, and the first token's over that of the others."
    return themed(figure, table.title, caption=f"{caption} {table.note}")


def _add_residual_norms(figure: go.Figure, rows: Table, model: str, index: int) -> None:
    style: dict[str, Any] = {
        "x": rows.column(BLOCK),
        "name": escaped(model),
        "legendgroup": model,
        "mode": "lines+markers",
        "marker": {"color": colour(index), "symbol": MARKERS[index % len(MARKERS)], "size": 9},
    }
    solid, dotted = ({"color": colour(index), "dash": dash} for dash in ("solid", "dot"))
    ratio = {"y": rows.column(RATIO), "error_y": error_bars(rows, RATIO)}
    figure.add_scatter(y=rows.column(FIRST_TOKEN), line=solid, row=1, col=1, **style)
    figure.add_scatter(y=rows.column(OTHER_TOKENS), line=dotted, showlegend=False, row=1, col=1, **style)
    figure.add_scatter(line=solid, showlegend=False, row=1, col=2, **ratio, **style)


def _ticks(table: Table) -> dict[str, Any]:
    blocks = unique_values(table, BLOCK)
    return {"tickvals": blocks} if len(blocks) <= 16 else {"nticks": 12}
