"""Models that were trained with several seeds, side by side."""

import math

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..plots.theme import GREY, colour, escaped, themed
from ..plots.traces import error_bars, unique_values
from ..report.columns import ALPHA_1, ALPHA_SLOT, LOSS, MODEL, SEED, SINK_1
from ..table import NULL, Table, published

_NULLS = {ALPHA_1: NULL}  # the null of a quantity, where the runs have one
_PANEL = 210  # pixels of height
_PAPER = {"mode": "markers", "marker": {"color": colour(1), "symbol": "diamond-open", "size": 11, "line": {"width": 2}}}


def by_model(table: Table, quantities: tuple[str, ...] = (ALPHA_1, SINK_1, LOSS)) -> go.Figure:
    """A panel per quantity, with a mark per seed and a line at the mean of each model.

    Grey: the null. Hollow: the value of the paper, where the table has it. A model whose training failed has no mark.
    """
    shown = [name for name in quantities if any(math.isfinite(value) for value in table.numbers(name))]
    figure = make_subplots(len(shown), 1, shared_xaxes=True, vertical_spacing=0.24 / max(1, len(shown)))
    is_paper_named = False
    names = unique_values(table, MODEL)
    models = [escaped(name) for name in names]
    for i, quantity in enumerate(shown):
        panel = {"row": i + 1, "col": 1, "showlegend": i == 0}
        figure.add_scatter(
            x=[escaped(name) for name in table.column(MODEL)],
            y=table.numbers(quantity),
            error_y=error_bars(table, quantity),
            text=[f"seed {seed}" for seed in table.column(SEED)],
            name="a seed",
            mode="markers",
            marker={"color": colour(0), "size": 8, "opacity": 0.6},
            **panel,
        )
        means = [_mean(table.where(**{MODEL: name}).numbers(quantity)) for name in names]
        dash = {"symbol": "line-ew", "size": 26, "line": {"width": 3, "color": colour(0)}}
        figure.add_scatter(x=models, y=means, name="mean of the seeds", mode="markers", marker=dash, **panel)
        if quantity in _NULLS:
            nulls = [_mean(table.where(**{MODEL: name}).numbers(NULL)) for name in names]
            grey = {"symbol": "line-ew", "size": 26, "line": {"width": 2, "color": GREY}}
            figure.add_scatter(x=models, y=nulls, name="null", mode="markers", marker=grey, **panel)
        if published(quantity) in table.columns:
            papers = [table.where(**{MODEL: name}).numbers(published(quantity))[0] for name in names]
            figure.add_scatter(
                x=models, y=papers, name="the paper's model", **_PAPER, **panel | {"showlegend": not is_paper_named}
            )
            is_paper_named = True
        figure.update_yaxes(title=escaped(quantity), row=i + 1, col=1, **_axis(quantity))
    caption = "One mark for each seed with its interval over sequences; the line is the mean of the seeds."
    return themed(figure, table.title, 130 + _PANEL * max(1, len(shown)), f"{caption} {table.note}")


def sink_against_loss(table: Table) -> go.Figure:
    """alpha_1 over the loss, a mark per model at the mean of its seeds, with its name; grey: the null."""
    figure = go.Figure()
    names = unique_values(table, MODEL)
    means = {
        quantity: [_mean(table.where(**{MODEL: name}).numbers(quantity)) for name in names]
        for quantity in (ALPHA_1, ALPHA_SLOT, LOSS, NULL)
    }
    for i, (quantity, label) in enumerate({ALPHA_1: "first token", ALPHA_SLOT: "slot"}.items()):
        figure.add_scatter(
            x=means[LOSS],
            y=means[quantity],
            text=[escaped(name) for name in names],
            mode="markers+text",
            textposition="top center",
            textfont={"size": 9},
            name=label,
            marker={"color": colour(i), "size": 9, "symbol": ("circle", "diamond")[i]},
        )
    grey = {"color": GREY, "symbol": "line-ew", "size": 10, "line": {"width": 2, "color": GREY}}
    figure.add_scatter(x=means[LOSS], y=means[NULL], name="null of the first token", mode="markers", marker=grey)
    figure.update_xaxes(title="validation loss, nats per token")
    figure.update_yaxes(title="importance, mean over heads", range=[-0.03, 1.03])
    caption = "Each mark is a model, mean over its seeds: how much attention its first token, or its slot, receives."
    return themed(figure, table.title, 640, f"{caption} {table.note}")


def _mean(values: list[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def _axis(quantity: str) -> dict[str, object]:
    return {} if quantity == LOSS else {"range": [-0.03, 1.03]}
