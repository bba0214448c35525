"""A quantity over whatever was turned, with its interval, its control and its null."""

from collections.abc import Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..table import Table
from .parts import MARKS, band, distinct, interval
from .theme import colour, label, themed

BESIDE = {"control {}": "dash", "null {}": "dot"}  # columns drawn in grey beside a quantity, and their dashes


def sweep(table: Table, x: str, quantities: Sequence[str], by: str | None = None) -> go.Figure:
    """A panel per quantity over column `x`: a line per value of `by` with its 95% interval, null and control as bands.

    Intervals are in `QUANTITY low` and `QUANTITY high`. In grey, from the first series: `control QUANTITY`,
    `null QUANTITY`, or `null` for the first quantity, each with its own `low` and `high` where the table has them.
    """
    figure = make_subplots(1, len(quantities), subplot_titles=list(map(label, quantities)))
    series = [table] if by is None else [table.where(**{by: value}) for value in distinct(table, by)]
    for column, quantity in enumerate(quantities):
        place = {"row": 1, "col": column + 1}
        beside = {pattern.format(quantity): dash for pattern, dash in BESIDE.items()} | (
            {} if column else {"null": "dot"}
        )
        for name, dash in beside.items():
            if name in table.columns:
                words = label(name.removesuffix(quantity).strip())
                band(figure, series[0], x, name, words, {"showlegend": column == 0, **place}, dash)
        for i, rows in enumerate(series):
            words = label(quantity if by is None else rows.rows[0][by])
            figure.add_scatter(
                x=rows.column(x), y=rows.numbers(quantity), error_y=interval(rows, quantity), name=words,
                mode="lines+markers", line={"color": colour(i)}, marker={"symbol": MARKS[i % len(MARKS)], "size": 8},
                legendgroup=words, showlegend=by is None or column == 0, **place,
            )  # fmt: skip
    figure.update_xaxes(title=label(x))
    figure.update_yaxes(rangemode="tozero")
    figure.update_yaxes(title=label(quantities[0]), col=1)
    words = f"{', '.join(quantities)} over {x}, with 95% intervals; grey: null or control."
    return themed(figure, table.title, caption=f"{words} {table.note}")
