"""Curves, error bars, bands and axes that figures share, and quantities over any column of a table."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..table import NULL, Cell, Table, high_of, low_of
from .theme import GREY, LIGHT, colour, escaped, faded, themed

MARKERS = ("circle", "square", "diamond", "cross", "x", "triangle-up")
LOG_FROM = 30.0  # largest over smallest value from which an axis is logarithmic
SHARE: dict[str, object] = {"range": [-0.03, 1.03]}  # of an axis from 0 to 1
PERCENT = SHARE | {"tickformat": ".0%"}
BAR_ERROR = {"color": LIGHT.text, "width": 3}
MEASURED = "measured"
PANEL_FONT = {"size": 12}  # of the titles of panels side by side


@dataclass(frozen=True)
class Grey:
    """A column that is drawn in grey beside a quantity, its name in the legend, and the dash of its line."""

    column: str
    name: str
    dash: str


def sweep_figure(table: Table, x: str, quantities: Sequence[str], by: str | None = None) -> go.Figure:
    """A panel per quantity over column `x`: a line per value of `by` with its 95% interval, null and control in grey.

    If `x` holds text, as the edits of `si.sweep` do, it is at the left, and every value has its own grey mark.
    Grey is drawn of the first series, from the columns `control QUANTITY` and `null QUANTITY`, and from `null` for the
    first quantity, with their intervals where the table has them.
    """
    series = _series(table, by)
    draw = _over_text if table.is_text(x) else _over_numbers
    figure = draw(table, series, x, quantities)
    _name_once(figure)
    has_grey = any(_greys(table, quantity, i == 0) for i, quantity in enumerate(quantities))
    caption = f"{', '.join(quantities)} over {x}, with 95% intervals{'; grey: null or control' * has_grey}."
    return themed(figure, table.title, _height(table, x), f"{caption} {table.note}")


def _over_numbers(table: Table, series: Mapping[str, Table], x: str, quantities: Sequence[str]) -> go.Figure:
    figure = make_subplots(1, len(quantities), horizontal_spacing=0.3 / max(3, len(quantities)))
    first_series = next(iter(series.values()))
    for i, quantity in enumerate(quantities):
        place = {"row": 1, "col": i + 1}
        for grey in _greys(table, quantity, is_first=i == 0):
            add_grey_band(figure, first_series, x, grey.column, grey.name, place, grey.dash)
        for j, (name, rows) in enumerate(series.items()):
            add_curve(figure, rows, x, quantity, j, name=name, legendgroup=name, **place)
        figure.update_yaxes(title={"text": escaped(quantity), "font": PANEL_FONT}, **place)
    figure.update_yaxes(rangemode="tozero")
    return figure.update_xaxes(title=escaped(x))


def _over_text(table: Table, series: Mapping[str, Table], x: str, quantities: Sequence[str]) -> go.Figure:
    figure = make_subplots(1, len(quantities), shared_yaxes=True)
    first_series = next(iter(series.values()))
    for i, quantity in enumerate(quantities):
        place = {"row": 1, "col": i + 1, "mode": "markers"}
        for grey in _greys(table, quantity, is_first=i == 0):
            _add_grey_marks(figure, first_series, x, grey, place)
        for j, (name, rows) in enumerate(series.items()):
            figure.add_scatter(
                x=rows.numbers(quantity),
                y=list(map(escaped, rows.column(x))),
                error_x=error_bars(rows, quantity),
                marker={"color": colour(j), "symbol": MARKERS[j % len(MARKERS)], "size": 9},
                name=name,
                legendgroup=name,
                **place,
            )
        figure.update_xaxes(title={"text": escaped(quantity), "font": PANEL_FONT}, row=1, col=i + 1)
    figure.update_yaxes(type="category", autorange="reversed")
    return figure.update_yaxes(title=escaped(x), col=1)


def _add_grey_marks(figure: go.Figure, rows: Table, x: str, grey: Grey, place: Mapping[str, Any]) -> None:
    around = {"color": faded(GREY, 0.4), "thickness": 14, "width": 0}
    figure.add_scatter(
        x=rows.numbers(grey.column),
        y=list(map(escaped, rows.column(x))),
        error_x=(error_bars(rows, grey.column) or {}) | around,
        marker={"color": GREY, "symbol": "line-ns-open", "size": 14, "line": {"width": 3}},
        name=grey.name,
        legendgroup=grey.name,
        **place,
    )


def _series(table: Table, by: str | None) -> dict[str, Table]:
    """The rows of every line, by its name."""
    if by is None:
        return {MEASURED: table}
    return {escaped(value): table.where(**{by: value}) for value in unique_values(table, by)}


def _greys(table: Table, quantity: str, is_first: bool) -> list[Grey]:
    """What the table has to be drawn in grey beside a quantity."""
    greys = [Grey(f"control {quantity}", "control", "dash"), Grey(f"null {quantity}", "null", "dot")]
    if is_first:
        greys.append(Grey(NULL, "null", "dot"))
    return [grey for grey in greys if grey.column in table.columns]


def _name_once(figure: go.Figure) -> None:
    """Shows each name once in the legend, where it comes first."""
    named: set[str] = set()
    for trace in figure.data:
        if trace.showlegend is not False:
            trace.showlegend = trace.name not in named
            named.add(trace.name)


def _height(table: Table, x: str) -> int:
    return 210 + 34 * len(unique_values(table, x)) if table.is_text(x) else 420


def unique_values(table: Table, column: str) -> list[Cell]:
    """The values of a column, each once, in the order of the rows."""
    return list(dict.fromkeys(table.column(column)))


def add_curve(figure: go.Figure, rows: Table, x: str, y: str, index: int = 0, **more: Any) -> None:
    """Adds column `y` over column `x` as a line with markers and, where the table has them, intervals.

    `index` gives colour and marker; `more` are further attributes of the trace, and its panel.
    """
    style = {"mode": "lines+markers", "line": {"color": colour(index)}, "error_y": error_bars(rows, y)}
    marker = {"symbol": MARKERS[index % len(MARKERS)], "size": 8}
    figure.add_scatter(x=rows.column(x), y=rows.column(y), **{**style, "marker": marker, "name": escaped(y)} | more)


def error_bars(table: Table, column: str) -> dict[str, Any] | None:
    """Plotly's asymmetric error bars from the interval of a quantity; None where the table has none."""
    if low_of(column) not in table.columns:
        return None
    values, lows, highs = (table.numbers(name) for name in (column, low_of(column), high_of(column)))
    return {
        "type": "data",
        "array": [high - value for value, high in zip(values, highs, strict=True)],
        "arrayminus": [value - low for value, low in zip(values, lows, strict=True)],
        "thickness": 1.5,
    }


def add_grey_band(
    figure: go.Figure, rows: Table, x: str, column: str, name: str, place: Mapping[str, Any], dash: str = "dot"
) -> None:
    """Adds a null or control in grey: its interval as a filled band, where it has one, and its mean as a broken line.

    `name` stands in the legend; `place` says which panel.
    """
    shared = {"x": rows.column(x), "mode": "lines", "legendgroup": name, **place}
    if low_of(column) in rows.columns:
        edge = {"line": {"width": 0}, "hoverinfo": "skip", **shared, "showlegend": False}
        fill = {"fill": "tonexty", "fillcolor": faded(GREY)}
        figure.add_scatter(y=rows.numbers(low_of(column)), name=f"{name}, low", **edge)
        figure.add_scatter(y=rows.numbers(high_of(column)), name=f"{name}, high", **fill, **edge)
    figure.add_scatter(y=rows.numbers(column), name=name, line={"color": GREY, "dash": dash}, **shared)


def positive_axis(values: Sequence[float]) -> dict[str, Any]:
    """An axis for positive values: logarithmic where they differ by more than `LOG_FROM`, else from zero."""
    positive = [value for value in values if math.isfinite(value) and value > 0]
    is_wide = bool(positive) and max(positive) > LOG_FROM * min(positive)
    return (
        {"type": "log", "exponentformat": "power", "dtick": 1} if is_wide else {"type": "linear", "rangemode": "tozero"}
    )
