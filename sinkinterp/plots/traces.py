"""What curves share: series, intervals, bands, axes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from ..table import Cell, Table
from .theme import GREY, LIGHT, faded

MARKS = ("circle", "square", "diamond", "cross", "x", "triangle-up")
WIDE = 30.0  # largest over smallest value from which an axis is logarithmic
PERCENT = {"range": [-0.03, 1.03], "tickformat": ".0%"}


def distinct(table: Table, name: str) -> list[Cell]:
    """The values of a column, each once, in the order of the rows."""
    return list(dict.fromkeys(table.column(name)))


def interval(rows: Table, name: str) -> dict[str, Any] | None:
    """Plotly's asymmetric error bars from a quantity's `low` and `high` columns; None without them."""
    if f"{name} low" not in rows.columns:
        return None
    cells = zip(rows.numbers(name), rows.numbers(f"{name} low"), rows.numbers(f"{name} high"), strict=True)
    spans = [(high - value, value - low) for value, low, high in cells]
    return {
        "type": "data", "array": [up for up, _ in spans], "arrayminus": [down for _, down in spans], "thickness": 1.5,
    }  # fmt: skip


def band(
    figure: go.Figure, rows: Table, x: str, name: str, words: str, place: Mapping[str, Any], dash: str = "dot"
) -> None:
    """A null or control in grey: its interval filled where it has one, its mean as a broken line."""
    shared = {"x": rows.column(x), "mode": "lines", "legendgroup": words, **place}
    if f"{name} low" in rows.columns:
        edge = {"line": {"width": 0}, "hoverinfo": "skip", **shared, "showlegend": False}
        figure.add_scatter(y=rows.numbers(f"{name} low"), name=f"{words}, low", **edge)
        figure.add_scatter(
            y=rows.numbers(f"{name} high"), name=f"{words}, high", fill="tonexty", fillcolor=faded(GREY), **edge
        )
    figure.add_scatter(y=rows.numbers(name), name=words, line={"color": GREY, "dash": dash}, **shared)


def span(values: Sequence[float]) -> dict[str, Any]:
    """An axis for positive values: logarithmic where they differ by more than `WIDE`, else from zero."""
    finite = [value for value in values if math.isfinite(value) and value > 0]
    wide = bool(finite) and max(finite) > WIDE * min(finite)
    return {"type": "log", "exponentformat": "power"} if wide else {"type": "linear", "rangemode": "tozero"}


BAR_ERROR = {"color": LIGHT.text, "width": 3}
