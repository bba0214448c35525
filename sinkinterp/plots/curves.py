"""Curves with intervals and nulls, over positions, thresholds, lengths and seeds."""

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..table import Table
from .columns import EPSILON, LENGTH, MODEL, NULL, POSITION, SEED, SINK_1, SINK_RATE
from .models import model_numbers
from .theme import GREY, colour, escaped, themed
from .traces import PERCENT, add_grey_band, error_bars, series_style, unique_values

ALPHA, NULL_ALPHA = "alpha", "null alpha"
LARGEST_OTHER = "largest other"


def by_position(table: Table) -> go.Figure:
    """Sink rate and importance of every position beside the null; from `tables.sinks_by_position`."""
    figure = go.Figure()
    x = table.column(POSITION)
    dashed, dotted = {"color": colour(1), "dash": "dash"}, {"color": GREY, "dash": "dot"}
    figure.add_scatter(x=x, y=table.column(ALPHA), name="mean importance", mode="lines", line=dashed)
    figure.add_scatter(
        x=x, y=table.column(NULL_ALPHA), name="importance under uniform attention", mode="lines", line=dotted
    )
    figure.add_scatter(
        x=x,
        y=table.column(SINK_RATE),
        error_y=error_bars(table, SINK_RATE),
        name="sink rate",
        mode="markers+lines",
        line={"color": colour(0)},
    )
    figure.update_xaxes(title="position (from 0)")
    figure.update_yaxes(title="share of attention, share of heads", range=[-0.03, 1.03])
    caption = (
        "Sink rate and mean importance of every position. Few queries see the last positions, so recent tokens score "
        "high there, as they do under uniform attention."
    )
    return themed(figure, table.title, caption=f"{caption} {table.note}")


def over_epsilon(table: Table) -> go.Figure:
    """Sink_1 over its threshold, with its interval, beside uniform attention's; from `tables.sinks_by_epsilon`."""
    figure = go.Figure()
    x = table.column(EPSILON)
    figure.add_scatter(
        x=x,
        y=table.numbers(SINK_1),
        error_y=error_bars(table, SINK_1),
        name="position 0",
        mode="lines+markers",
        line={"color": colour(0)},
        marker={"size": 9},
    )
    figure.add_scatter(
        x=x,
        y=table.numbers(LARGEST_OTHER),
        name="largest of the other positions",
        mode="lines+markers",
        line={"color": colour(1), "dash": "dash"},
        marker={"symbol": "square", "size": 8},
    )
    add_grey_band(figure, table, EPSILON, NULL, "position 0, uniform attention", {})
    figure.update_xaxes(title="epsilon: importance that makes a sink")
    figure.update_yaxes(title="share of heads", **PERCENT)
    caption = (
        "Sink rate of the first position over the threshold epsilon. The largest of the others is often one of the "
        "last, which few queries see."
    )
    return themed(figure, table.title, caption=f"{caption} {table.note}")


def over_length(table: Table) -> go.Figure:
    """Sink_1 over the length of sequences, a line per epsilon, uniform attention dotted; `tables.sinks_by_length`."""
    models = unique_values(table, MODEL)
    figure = make_subplots(1, len(models), subplot_titles=list(map(escaped, models)), shared_yaxes=True)
    for column, model in enumerate(models):
        for i, epsilon in enumerate(unique_values(table, EPSILON)):
            rows = table.where(**{MODEL: model, EPSILON: epsilon})
            shared = {"x": rows.column(LENGTH), "legendgroup": f"{epsilon}", "row": 1, "col": column + 1}
            figure.add_scatter(
                y=rows.numbers(SINK_1),
                error_y=error_bars(rows, SINK_1),
                name=f"epsilon {epsilon}",
                showlegend=column == 0,
                **series_style(i, 8),
                **shared,
            )
            dotted = {"color": colour(i), "dash": "dot", "width": 1.5}
            figure.add_scatter(
                y=rows.numbers(NULL), name=f"uniform, {epsilon}", mode="lines", showlegend=False, line=dotted, **shared
            )
    ticks = sorted(unique_values(table, LENGTH), key=lambda t: float(t or 0))
    figure.update_xaxes(title="T, tokens per sequence", type="log", tickvals=ticks, ticktext=list(map(str, ticks)))
    figure.update_yaxes(title="Sink_1, share of heads", col=1)
    figure.update_yaxes(**PERCENT)
    caption = "Sink rate of the first position over the length of the sequences; dotted: under uniform attention."
    return themed(figure, table.title, caption=f"{caption} {table.note}")


def seeds(table: Table, quantity: str, reported: str) -> go.Figure:
    """A rate of every seed and model with its interval; the values of column `reported` as hollow marks."""
    figure = go.Figure()
    for model, i in model_numbers(unique_values(table, MODEL)).items():
        rows = table.where(**{MODEL: model})
        x = [f"{escaped(model)}, seed {seed}" for seed in rows.column(SEED)]
        figure.add_scatter(
            x=x,
            y=rows.column(quantity),
            error_y=error_bars(rows, quantity),
            name=f"{escaped(model)}, ours",
            mode="markers",
            marker={"color": colour(i), "size": 10},
        )
        figure.add_scatter(
            x=x,
            y=rows.column(reported),
            name=f"{escaped(model)}, paper",
            mode="markers",
            marker={"color": colour(i), "size": 10, "symbol": "circle-open", "line": {"width": 2}},
        )
    figure.update_yaxes(title=f"{escaped(quantity)}, share of heads", **PERCENT)
    caption = f"{quantity} of every seed; hollow: reported."
    return themed(figure, escaped(quantity), 480, f"{caption} {table.note}")
