"""The swap chart: where the sink goes when p1 goes elsewhere (Gu et al. 2025, Table 7)."""

from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..table import Table
from .columns import EDIT, INPUT, NULL, SINK_1, SINK_T, TARGET, published
from .theme import GREY, colour, escaped, themed
from .traces import BAR_ERROR, error_bars, unique_values

RATES = (SINK_1, SINK_T)


def swap_chart(table: Table, reported: str = "GPT2-XL in the paper") -> go.Figure:
    """Sink_1 and Sink_t under each edit of the positions, one panel per input; from `swap_table`.

    Grey dashes: the null, where the table has one; hollow marks: the values that the paper reports, where it has them.
    """
    inputs = unique_values(table, INPUT)
    titles = [f"{escaped(name)} input" for name in inputs]
    figure = make_subplots(
        len(inputs), 1, subplot_titles=titles, shared_xaxes=True, vertical_spacing=0.24 / len(inputs)
    )
    for i, name in enumerate(inputs):
        rows = table.where(**{INPUT: name})
        targets = [str(int(t or 1) - 1) for t in rows.column(TARGET)]
        x = [[escaped(edit) for edit in rows.column(EDIT)], targets]
        panel = {"x": x, "showlegend": i == 0, "row": i + 1, "col": 1}
        _add_measured(figure, rows, panel)
        _add_reported(figure, rows, panel, reported)
        _add_nulls(figure, rows, panel)
    figure.update_xaxes(title="position t (from 0), and the edit", row=len(inputs), col=1)
    figure.update_layout(scattermode="group", bargap=0.3)
    figure.update_yaxes(range=[0, 1.05], tickformat=".0%", title="share of heads")
    caption = (
        "Share of (sequence, layer, head) whose importance of the first token (Sink_1), and of the token at position t "
        "(Sink_t), exceeds epsilon"
    )
    note = table.note.replace("t counts from 1; ", "")  # that is so in the table, whose t the figure does not show
    height = 140 + 190 * len(inputs)
    return themed(
        figure, table.title, height, f"{caption}, before (none) and after every edit; t counts from 0. {note}"
    )


def _add_measured(figure: go.Figure, rows: Table, panel: dict[str, Any]) -> None:
    for i, rate in enumerate(RATES):
        figure.add_bar(
            y=rows.column(rate),
            error_y=(error_bars(rows, rate) or {}) | BAR_ERROR,
            name=rate,
            legendgroup=rate,
            offsetgroup=rate,
            marker={"color": colour(i)},
            **panel,
        )


def _add_reported(figure: go.Figure, rows: Table, panel: dict[str, Any], reported: str) -> None:
    symbols = ("circle-open", "diamond-open")
    for i, rate in enumerate(RATES):
        if published(rate) in rows.columns:
            figure.add_scatter(
                y=rows.column(published(rate)),
                name=f"{rate}, {escaped(reported)}",
                mode="markers",
                legendgroup=published(rate),
                offsetgroup=rate,
                cliponaxis=False,
                marker={"color": colour(i + 2), "symbol": symbols[i], "size": 12, "line": {"width": 3}},
                **panel,
            )


def _add_nulls(figure: go.Figure, rows: Table, panel: dict[str, Any]) -> None:
    if NULL not in rows.columns:
        return
    for rate in RATES:
        figure.add_scatter(
            y=rows.numbers(NULL),
            name="larger rate under uniform attention",
            mode="markers",
            legendgroup="null",
            offsetgroup=rate,
            cliponaxis=False,
            marker={"color": GREY, "symbol": "line-ew-open", "size": 24, "line": {"width": 3}},
            **panel | {"showlegend": panel["showlegend"] and rate == RATES[0]},
        )
