"""What figures share: columns, series, error bars, bands, axes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from ..table import Cell, Table, high_of, low_of
from .theme import GREY, LIGHT, colour, escaped, faded

MARKERS = ("circle", "square", "diamond", "cross", "x", "triangle-up")
LOG_FROM = 30.0  # largest over smallest value from which an axis is logarithmic
SHARE: dict[str, object] = {"range": [-0.03, 1.03]}  # of an axis from 0 to 1
PERCENT = SHARE | {"tickformat": ".0%"}
BAR_ERROR = {"color": LIGHT.text, "width": 3}


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
