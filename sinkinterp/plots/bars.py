"""Bars with intervals, and published values beside them."""

import plotly.graph_objects as go

from ..table import Table
from .theme import colour, label, themed
from .traces import interval

OPEN = ("circle-open", "square-open", "diamond-open", "cross-open")


def beside_published(table: Table, by: str, quantity: str, published: tuple[str, ...]) -> go.Figure:
    """A bar per row, named by column `by`, with its interval; the published columns as hollow marks."""
    figure = go.Figure()
    x = [label(word) for word in table.column(by)]
    figure.add_bar(
        x=x, y=table.numbers(quantity), name=label(quantity), marker={"color": colour(0)},
        error_y=interval(table, quantity),
    )  # fmt: skip
    for i, name in enumerate(published):
        figure.add_scatter(
            x=x, y=table.numbers(name), name=label(name), mode="markers",
            marker={"color": colour(i + 1), "symbol": OPEN[i % len(OPEN)], "size": 10, "line": {"width": 2}},
        )  # fmt: skip
    figure.update_yaxes(title=label(quantity), tickformat=".0%", rangemode="tozero")
    return themed(figure, table.title, 520, table.note)
