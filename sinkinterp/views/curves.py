"""Curves and bars with intervals and nulls."""

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..table import Cell, Table
from .theme import GREY, colour, label, themed

MARKS = ("circle", "square", "diamond", "cross", "x", "triangle-up")


def residual_norms(table: Table) -> go.Figure:
    """First token's residual norm and the others', and their ratio, by block and model; from `tabulate.residuals`."""
    titles = ("norm: first token (solid), other tokens (dashed)", "ratio, with 95% interval")
    figure = make_subplots(1, 2, subplot_titles=titles, horizontal_spacing=0.1)
    for i, model in enumerate(_distinct(table, "model")):
        rows = table.where(model=model)
        style = {"x": rows.column("block"), "name": label(model), "legendgroup": model, "mode": "lines+markers"}
        marker = {"color": colour(i), "symbol": MARKS[i % len(MARKS)], "size": 9}
        solid, dashed = ({"color": colour(i), "dash": dash} for dash in ("solid", "dot"))
        figure.add_scatter(y=rows.column("first token"), line=solid, marker=marker, row=1, col=1, **style)
        figure.add_scatter(
            y=rows.column("other tokens"), line=dashed, marker=marker, showlegend=False, row=1, col=1, **style
        )
        figure.add_scatter(
            y=rows.column("ratio"), error_y=_interval(rows, "ratio"), line=solid, marker=marker,
            showlegend=False, row=1, col=2, **style,
        )  # fmt: skip
    figure.add_hline(y=1, line={"color": GREY, "dash": "dot"}, row=1, col=2)
    figure.update_xaxes(title="block (0: embedding)", dtick=1 if len(table.rows) < 60 else None)
    figure.update_yaxes(title="residual norm", rangemode="tozero", row=1, col=1)
    figure.update_yaxes(title="first / others", rangemode="tozero", row=1, col=2)
    return themed(figure, table.title)


def training(table: Table) -> go.Figure:
    """Validation loss and sink rates over optimiser steps; from the demo's training table."""
    panels = {"valid_loss": "validation loss (nats)", "sink_1": "Sink_1", "sink_slot": "Sink_* (slot)"}
    figure = make_subplots(1, len(panels), subplot_titles=list(panels.values()), horizontal_spacing=0.08)
    for i, model in enumerate(_distinct(table, "model")):
        rows = table.where(model=model)
        for column, quantity in enumerate(panels):
            figure.add_scatter(
                x=rows.column("step"), y=rows.column(quantity), name=label(model), legendgroup=model,
                mode="lines+markers", line={"color": colour(i)}, marker={"symbol": MARKS[i % len(MARKS)]},
                showlegend=column == 0, row=1, col=column + 1,
            )  # fmt: skip
    figure.update_xaxes(title="optimiser step")
    for column in (2, 3):
        figure.update_yaxes(range=[-0.03, 1.03], tickformat=".0%", row=1, col=column)
    return themed(figure, table.title)


def swaps(table: Table) -> go.Figure:
    """Sink_1 and Sink_t under each edit of the positions, one panel per input; hollow marks: the paper's values."""
    inputs = _distinct(table, "input")
    titles = [f"{label(name)} input" for name in inputs]
    figure = make_subplots(1, len(inputs), subplot_titles=titles, shared_yaxes=True, horizontal_spacing=0.03)
    for column, name in enumerate(inputs):
        rows = table.where(input=name)
        x = [[label(edit) for edit in rows.column("edit")], [f"t={t}" for t in rows.column("t")]]
        for i, rate in enumerate(("Sink_1", "Sink_t")):
            place = {"x": x, "legendgroup": rate, "showlegend": column == 0}
            figure.add_bar(
                y=rows.column(rate), error_y=_interval(rows, rate), name=rate, marker={"color": colour(i)},
                **place, row=1, col=column + 1,
            )  # fmt: skip
            if f"paper {rate}" in table.columns:
                figure.add_scatter(
                    y=rows.column(f"paper {rate}"), name=f"{rate}, GPT2-XL in the paper", mode="markers",
                    marker={"color": colour(i), "symbol": "circle-open", "size": 11, "line": {"width": 2}},
                    **place, row=1, col=column + 1,
                )  # fmt: skip
    figure.update_xaxes(tickfont={"size": 10})
    figure.update_yaxes(range=[0, 1.05], tickformat=".0%")
    figure.update_yaxes(title="share of (sequence, head) above epsilon", row=1, col=1)
    return themed(figure, table.title, 520)


def by_position(table: Table) -> go.Figure:
    """Sink rate and importance of every position beside the null; from `tabulate.positions`."""
    figure = go.Figure()
    x = table.column("position")
    figure.add_scatter(x=x, y=table.column("alpha"), name="mean importance", line={"color": colour(1)})
    figure.add_scatter(
        x=x,
        y=table.column("null alpha"),
        name="importance under uniform attention",
        line={"color": GREY, "dash": "dot"},
    )
    figure.add_scatter(
        x=x, y=table.column("sink rate"), error_y=_interval(table, "sink rate"), name="sink rate",
        mode="markers+lines", line={"color": colour(0)},
    )  # fmt: skip
    figure.update_xaxes(title="position (from 0)")
    figure.update_yaxes(title="share", range=[-0.03, 1.03])
    return themed(figure, table.title)


def over_epsilon(table: Table) -> go.Figure:
    """Sink_1 over its threshold, with its interval, beside uniform attention's; from `tabulate.grid`."""
    figure = go.Figure()
    x = table.column("epsilon")
    figure.add_scatter(
        x=x, y=table.numbers("Sink_1"), error_y=_interval(table, "Sink_1"), name="position 0", mode="lines+markers",
        line={"color": colour(0)}, marker={"size": 9},
    )  # fmt: skip
    figure.add_scatter(
        x=x, y=table.numbers("largest other"), name="largest of the other positions", mode="lines+markers",
        line={"color": colour(1), "dash": "dash"}, marker={"symbol": "square", "size": 8},
    )  # fmt: skip
    figure.add_scatter(
        x=x, y=table.numbers("null"), name="position 0, uniform attention", line={"color": GREY, "dash": "dot"}
    )
    figure.update_xaxes(title="epsilon: importance that makes a sink")
    figure.update_yaxes(title="share of heads", range=[-0.02, 1.02], tickformat=".0%")
    return themed(figure, table.title)


def seeds(table: Table, quantity: str, reported: str) -> go.Figure:
    """A rate of every seed and model with its interval, the reported values as hollow marks."""
    figure = go.Figure()
    for i, model in enumerate(_distinct(table, "model")):
        rows = table.where(model=model)
        x = [f"{label(model)}, seed {seed}" for seed in rows.column("seed")]
        figure.add_scatter(
            x=x, y=rows.column(quantity), error_y=_interval(rows, quantity), name=f"{label(model)}, ours",
            mode="markers", marker={"color": colour(i), "size": 10},
        )  # fmt: skip
        figure.add_scatter(
            x=x, y=rows.column(reported), name=f"{label(model)}, paper", mode="markers",
            marker={"color": colour(i), "size": 10, "symbol": "circle-open"},
        )  # fmt: skip
    figure.update_yaxes(title=quantity, range=[-0.03, 1.03], tickformat=".0%")
    return themed(figure, quantity, 480)


def _distinct(table: Table, name: str) -> list[Cell]:
    return list(dict.fromkeys(table.column(name)))


def _interval(rows: Table, name: str) -> Mapping[str, Any]:
    """Plotly's asymmetric error bars from a quantity's `low` and `high` columns."""
    cells = zip(rows.numbers(name), rows.numbers(f"{name} low"), rows.numbers(f"{name} high"), strict=True)
    spans = [(high - value, value - low) for value, low, high in cells]
    return {"type": "data", "array": [up for up, _ in spans], "arrayminus": [down for _, down in spans]}
