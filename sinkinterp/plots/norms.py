"""Norms by block: the first token's beside the others' (Gu et al. 2025, Figures 2 top, 7, 8, 11 to 14, 29)."""

from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..table import Table
from .theme import GREY, colour, label, themed
from .traces import MARKS, distinct, interval, span

BLOCK = "block (0: embedding)"


def by_kind(table: Table) -> go.Figure:
    """Norms of residuals, keys and values by block, a line per kind of token; from `tables.norms`."""
    quantities = distinct(table, "quantity")
    axes = {"residual": BLOCK}
    figure = make_subplots(1, len(quantities), subplot_titles=[f"{label(q)} norm" for q in quantities])
    for i, kind in enumerate(distinct(table, "tokens")):
        for column, quantity in enumerate(quantities):
            rows = table.where(quantity=quantity, tokens=kind)
            figure.add_scatter(
                x=rows.column("block"), y=rows.numbers("norm"), error_y=interval(rows, "norm"), name=label(kind),
                mode="lines+markers", line={"color": colour(i)}, marker={"symbol": MARKS[i % len(MARKS)], "size": 7},
                legendgroup=label(kind), showlegend=column == 0, row=1, col=column + 1,
            )  # fmt: skip
    for column, quantity in enumerate(quantities):
        place = {"row": 1, "col": column + 1}
        figure.update_xaxes(title=axes.get(str(quantity), "layer"), **_ticks(table.where(quantity=quantity)), **place)
        figure.update_yaxes(**span(table.where(quantity=quantity).numbers("norm")), **place)
    figure.update_yaxes(title="mean Euclidean norm", col=1)
    words = "Mean norm of residuals, keys and values by kind of token; keys and values over kv heads."
    return themed(figure, table.title, caption=f"{words} {table.note}")


def ratios(table: Table) -> go.Figure:
    """The first token's residual norm over the others' by block, a line per model; from `tables.residuals`."""
    figure = go.Figure()
    for i, model in enumerate(distinct(table, "model")):
        rows = table.where(model=model)
        figure.add_scatter(
            x=rows.column("block"), y=rows.numbers("ratio"), error_y=interval(rows, "ratio"), name=label(model),
            mode="lines+markers", line={"color": colour(i)}, marker={"symbol": MARKS[i % len(MARKS)], "size": 8},
        )  # fmt: skip
    figure.add_hline(y=1, line={"color": GREY, "dash": "dot"})
    figure.update_xaxes(title=BLOCK, **_ticks(table))
    figure.update_yaxes(title="residual norm, first token / others", **span([*table.numbers("ratio"), 1.0]))
    words = "Norm of the first token's residual over the mean norm of the other tokens; dotted: equal."
    return themed(figure, "Residual-norm ratio by block", caption=f"{words} {table.note}")


def residual_norms(table: Table) -> go.Figure:
    """First token's residual norm and the others', and their ratio, by block and model; from `tables.residuals`."""
    titles = ("norm: first token (solid), other tokens (dotted)", "ratio, with 95% interval")
    figure = make_subplots(1, 2, subplot_titles=titles, horizontal_spacing=0.1)
    for i, model in enumerate(distinct(table, "model")):
        rows = table.where(model=model)
        style: dict[str, Any] = {
            "x": rows.column("block"),
            "name": label(model),
            "legendgroup": model,
            "mode": "lines+markers",
        }
        style |= {"marker": {"color": colour(i), "symbol": MARKS[i % len(MARKS)], "size": 9}}
        solid, dotted = ({"color": colour(i), "dash": dash} for dash in ("solid", "dot"))
        figure.add_scatter(y=rows.column("first token"), line=solid, row=1, col=1, **style)
        figure.add_scatter(y=rows.column("other tokens"), line=dotted, showlegend=False, row=1, col=1, **style)
        figure.add_scatter(
            y=rows.column("ratio"), error_y=interval(rows, "ratio"), line=solid, showlegend=False, row=1, col=2, **style
        )
    figure.add_hline(y=1, line={"color": GREY, "dash": "dot"}, row=1, col=2)
    figure.update_xaxes(title=BLOCK, **_ticks(table))
    norms = [*table.numbers("first token"), *table.numbers("other tokens")]
    figure.update_yaxes(title="residual norm", **span(norms), row=1, col=1)
    figure.update_yaxes(title="first / others", **span([*table.numbers("ratio"), 1.0]), row=1, col=2)
    words = "Mean norm of the residual stream by block, and the first token's over that of the others."
    return themed(figure, table.title, caption=f"{words} {table.note}")


def _ticks(table: Table) -> dict[str, Any]:
    blocks = distinct(table, "block")
    return {"tickvals": blocks} if len(blocks) <= 16 else {"nticks": 12}
