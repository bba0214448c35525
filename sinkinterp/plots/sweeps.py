"""A quantity over whatever was turned, with its interval, its control and its null."""

from collections.abc import Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..table import Table
from .theme import GREY, colour, faded, label, themed
from .traces import MARKS, band, distinct, interval

BESIDE = {"control {}": "dash", "null {}": "dot"}  # columns drawn in grey beside a quantity, and their dashes
MEASURED = "measured"


def sweep(table: Table, x: str, quantities: Sequence[str], by: str | None = None) -> go.Figure:
    """A panel per quantity over column `x`: a line per value of `by` with its 95% interval, null and control as bands.

    Where `x` holds words, as the edits of `sinkinterp.sweeping.sweep`, they stand to the left, each with its own bands.
    Intervals are in `QUANTITY low` and `QUANTITY high`. In grey, from the first series: `control QUANTITY`,
    `null QUANTITY`, or `null` for the first quantity, each with its own `low` and `high` where the table has them.
    """
    draw = _over_words if table.is_wordy(x) else _over_numbers
    figure = draw(table, x, quantities, by)
    _name_once(figure)
    words = f"{', '.join(quantities)} over {x}, with 95% intervals; grey: null or control."
    return themed(figure, table.title, _height(table, x), f"{words} {table.note}")


def _over_numbers(table: Table, x: str, quantities: Sequence[str], by: str | None) -> go.Figure:
    figure = make_subplots(1, len(quantities), subplot_titles=list(map(label, quantities)))
    series = _series(table, by)
    for column, quantity in enumerate(quantities):
        place = {"row": 1, "col": column + 1}
        for name, (words, dash) in _beside(table, quantity, column == 0).items():
            band(figure, next(iter(series.values())), x, name, words, place, dash)
        for i, (words, rows) in enumerate(series.items()):
            figure.add_scatter(
                x=rows.column(x), y=rows.numbers(quantity), error_y=interval(rows, quantity), name=words,
                mode="lines+markers", line={"color": colour(i)}, marker={"symbol": MARKS[i % len(MARKS)], "size": 8},
                legendgroup=words, **place,
            )  # fmt: skip
    figure.update_xaxes(title=label(x))
    figure.update_yaxes(rangemode="tozero")
    return figure.update_yaxes(title=label(quantities[0]), col=1)


def _over_words(table: Table, x: str, quantities: Sequence[str], by: str | None) -> go.Figure:
    figure = make_subplots(1, len(quantities), subplot_titles=list(map(label, quantities)), shared_yaxes=True)
    series = _series(table, by)
    for column, quantity in enumerate(quantities):
        place = {"row": 1, "col": column + 1, "mode": "markers"}
        for name, (words, _) in _beside(table, quantity, column == 0).items():
            rows = next(iter(series.values()))
            around = {"color": faded(GREY, 0.4), "thickness": 14, "width": 0}
            figure.add_scatter(
                x=rows.numbers(name), y=list(map(label, rows.column(x))), error_x=(interval(rows, name) or {}) | around,
                marker={"color": GREY, "symbol": "line-ns-open", "size": 14, "line": {"width": 3}},
                name=words, legendgroup=words, **place,
            )  # fmt: skip
        for i, (words, rows) in enumerate(series.items()):
            figure.add_scatter(
                x=rows.numbers(quantity), y=list(map(label, rows.column(x))), error_x=interval(rows, quantity),
                marker={"color": colour(i), "symbol": MARKS[i % len(MARKS)], "size": 9}, name=words,
                legendgroup=words, **place,
            )  # fmt: skip
        figure.update_xaxes(title=label(quantity), row=1, col=column + 1)
    figure.update_yaxes(type="category", autorange="reversed")
    return figure.update_yaxes(title=label(x), col=1)


def _series(table: Table, by: str | None) -> dict[str, Table]:
    if by is None:
        return {MEASURED: table}
    return {label(value): table.where(**{by: value}) for value in distinct(table, by)}


def _beside(table: Table, quantity: str, is_first: bool) -> dict[str, tuple[str, str]]:
    """Columns to draw in grey, with their names in the legend and their dashes."""
    asked = {pattern.format(quantity): dash for pattern, dash in BESIDE.items()} | ({"null": "dot"} if is_first else {})
    return {name: (name.removesuffix(quantity).strip(), dash) for name, dash in asked.items() if name in table.columns}


def _name_once(figure: go.Figure) -> None:
    """Each name once in the legend, wherever it comes first."""
    named: set[str] = set()
    for trace in figure.data:
        if trace.showlegend is not False:
            trace.showlegend = trace.name not in named
            named.add(trace.name)


def _height(table: Table, x: str) -> int:
    return 210 + 34 * len(distinct(table, x)) if table.is_wordy(x) else 420
