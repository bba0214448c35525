"""Curves and bars with intervals and nulls, over positions, thresholds, lengths, edits and seeds."""

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..table import Table
from .theme import GREY, colour, label, themed
from .traces import BAR_ERROR, MARKS, PERCENT, band, distinct, interval


def swaps(table: Table, reported: str = "GPT2-XL in the paper") -> go.Figure:
    """Sink_1 and Sink_t under each edit of the positions, one panel per input.

    Grey dashes: the null, where the table has one; hollow marks: the values of columns `paper Sink_1`, `paper Sink_t`.
    """
    inputs = distinct(table, "input")
    titles = [f"{label(name)} input" for name in inputs]
    figure = make_subplots(
        len(inputs), 1, subplot_titles=titles, shared_xaxes=True, vertical_spacing=0.24 / len(inputs)
    )
    for line, name in enumerate(inputs):
        rows = table.where(input=name)
        x = [[label(edit) for edit in rows.column("edit")], [f"t={t}" for t in rows.column("t")]]
        shared = {"x": x, "showlegend": line == 0, "row": line + 1, "col": 1}
        for i, rate in enumerate(("Sink_1", "Sink_t")):
            figure.add_bar(
                y=rows.column(rate), error_y=(interval(rows, rate) or {}) | BAR_ERROR, name=rate, legendgroup=rate,
                offsetgroup=rate, marker={"color": colour(i)}, **shared,
            )  # fmt: skip
        for i, rate in enumerate(("Sink_1", "Sink_t")):
            if f"paper {rate}" in table.columns:
                figure.add_scatter(
                    y=rows.column(f"paper {rate}"), name=f"{rate}, {label(reported)}", mode="markers",
                    legendgroup=f"paper {rate}", offsetgroup=rate, cliponaxis=False, **shared,
                    marker={"color": colour(i + 2), "symbol": ("circle-open", "diamond-open")[i], "size": 12,
                            "line": {"width": 3}},
                )  # fmt: skip
        for i, rate in enumerate(("Sink_1", "Sink_t")):
            if "null" in table.columns:
                figure.add_scatter(
                    y=rows.numbers("null"), name="larger rate under uniform attention", mode="markers",
                    legendgroup="null", offsetgroup=rate, cliponaxis=False,
                    **shared | {"showlegend": line == 0 and i == 0},
                    marker={"color": GREY, "symbol": "line-ew-open", "size": 24, "line": {"width": 3}},
                )  # fmt: skip
    figure.update_layout(scattermode="group", bargap=0.3)
    figure.update_yaxes(range=[0, 1.05], tickformat=".0%", title="share of heads")
    words = "Share of (sequence, layer, head) whose importance of position 1, and of position t, exceeds epsilon"
    height = 140 + 190 * len(inputs)
    return themed(figure, table.title, height, f"{words}, before (none) and after every edit. {table.note}")


def by_position(table: Table) -> go.Figure:
    """Sink rate and importance of every position beside the null; from `tables.positions`."""
    figure = go.Figure()
    x = table.column("position")
    figure.add_scatter(
        x=x, y=table.column("alpha"), name="mean importance", mode="lines", line={"color": colour(1), "dash": "dash"}
    )
    figure.add_scatter(
        x=x, y=table.column("null alpha"), name="importance under uniform attention", mode="lines",
        line={"color": GREY, "dash": "dot"},
    )  # fmt: skip
    figure.add_scatter(
        x=x, y=table.column("sink rate"), error_y=interval(table, "sink rate"), name="sink rate",
        mode="markers+lines", line={"color": colour(0)},
    )  # fmt: skip
    figure.update_xaxes(title="position (from 0)")
    figure.update_yaxes(title="share of attention, share of heads", range=[-0.03, 1.03])
    words = (
        "Sink rate and mean importance of every position. Few queries see the last positions, so recent tokens score "
        "high there, as they do under uniform attention."
    )
    return themed(figure, table.title, caption=f"{words} {table.note}")


def over_epsilon(table: Table) -> go.Figure:
    """Sink_1 over its threshold, with its interval, beside uniform attention's; from `tables.grid`."""
    figure = go.Figure()
    x = table.column("epsilon")
    figure.add_scatter(
        x=x, y=table.numbers("Sink_1"), error_y=interval(table, "Sink_1"), name="position 0", mode="lines+markers",
        line={"color": colour(0)}, marker={"size": 9},
    )  # fmt: skip
    figure.add_scatter(
        x=x, y=table.numbers("largest other"), name="largest of the other positions", mode="lines+markers",
        line={"color": colour(1), "dash": "dash"}, marker={"symbol": "square", "size": 8},
    )  # fmt: skip
    band(figure, table, "epsilon", "null", "position 0, uniform attention", {})
    figure.update_xaxes(title="epsilon: importance that makes a sink")
    figure.update_yaxes(title="share of heads", **PERCENT)
    words = (
        "Sink rate of the first position as the threshold epsilon is turned. The largest of the others is often one "
        "of the last, which few queries see."
    )
    return themed(figure, table.title, caption=f"{words} {table.note}")


def over_length(table: Table) -> go.Figure:
    """Sink_1 over the length of sequences, a line per epsilon, uniform attention dotted; from `tables.lengths`."""
    models = distinct(table, "model")
    figure = make_subplots(1, len(models), subplot_titles=list(map(label, models)), shared_yaxes=True)
    lengths = sorted(distinct(table, "T"), key=lambda t: float(t or 0))
    for column, model in enumerate(models):
        for i, epsilon in enumerate(distinct(table, "epsilon")):
            rows = table.where(model=model, epsilon=epsilon)
            shared = {"x": rows.column("T"), "legendgroup": f"{epsilon}", "row": 1, "col": column + 1}
            figure.add_scatter(
                y=rows.numbers("Sink_1"), error_y=interval(rows, "Sink_1"), name=f"epsilon {epsilon}",
                mode="lines+markers", line={"color": colour(i)}, marker={"symbol": MARKS[i % len(MARKS)], "size": 8},
                showlegend=column == 0, **shared,
            )  # fmt: skip
            figure.add_scatter(
                y=rows.numbers("null"), name=f"uniform, {epsilon}", mode="lines", showlegend=False,
                line={"color": colour(i), "dash": "dot", "width": 1.5}, **shared,
            )  # fmt: skip
    figure.update_xaxes(title="T, tokens per sequence", type="log", tickvals=lengths, ticktext=list(map(str, lengths)))
    figure.update_yaxes(title="Sink_1, share of heads", col=1)
    figure.update_yaxes(**PERCENT)
    words = "Sink rate of the first position over the length of the sequences; dotted: under uniform attention."
    return themed(figure, table.title, caption=f"{words} {table.note}")


def seeds(table: Table, quantity: str, reported: str) -> go.Figure:
    """A rate of every seed and model with its interval, the reported values as hollow marks."""
    figure = go.Figure()
    for i, model in enumerate(distinct(table, "model")):
        rows = table.where(model=model)
        x = [f"{label(model)}, seed {seed}" for seed in rows.column("seed")]
        figure.add_scatter(
            x=x, y=rows.column(quantity), error_y=interval(rows, quantity), name=f"{label(model)}, ours",
            mode="markers", marker={"color": colour(i), "size": 10},
        )  # fmt: skip
        figure.add_scatter(
            x=x, y=rows.column(reported), name=f"{label(model)}, paper", mode="markers",
            marker={"color": colour(i), "size": 10, "symbol": "circle-open", "line": {"width": 2}},
        )  # fmt: skip
    figure.update_yaxes(title=f"{label(quantity)}, share of heads", **PERCENT)
    words = f"{quantity} of every seed; hollow: reported."
    return themed(figure, label(quantity), 480, f"{words} {table.note}")
