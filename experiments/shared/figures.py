"""Figures beside the paper's numbers, and tables of runs over steps."""

import math
from typing import Any

import plotly.graph_objects as go

from sinkinterp.plots.theme import GREY, PERCENT, colour, error_bars, escaped, themed, unique_values
from sinkinterp.report.readings import short_name
from sinkinterp.runs.trained import STEP
from sinkinterp.table import ALPHA_1, ALPHA_SLOT, MODEL, NULL, SEED, Cell, Table

from .study import means_of

OPEN_MARKERS = ("circle-open", "square-open", "diamond-open", "cross-open")


def beside_published(table: Table, by: str, quantity: str, published: tuple[str, ...]) -> go.Figure:
    """A bar with its interval per row, named by column `by`; the published columns as hollow marks.

    Rows of several models are grouped by them.
    """
    figure = go.Figure()
    x: list[Any] = [escaped(short_name(str(name)) if by == MODEL else name) for name in table.frame[by]]
    models = [escaped(short_name(str(row.get(MODEL)))) for row in table.records()]
    if by != MODEL and 1 < len({*models}) < len(models):
        x = [models, x]
    figure.add_bar(
        x=x,
        y=table.numbers(quantity),
        name=escaped(quantity),
        marker={"color": colour(0)},
        error_y=error_bars(table, quantity),
    )
    for i, column in enumerate(published):
        symbol = OPEN_MARKERS[i % len(OPEN_MARKERS)]
        figure.add_scatter(
            x=x,
            y=table.numbers(column),
            name=escaped(column),
            mode="markers",
            marker={"color": colour(i + 1), "symbol": symbol, "size": 10, "line": {"width": 2}},
        )
    figure.update_yaxes(title=escaped(quantity), tickformat=".0%", rangemode="tozero")
    return themed(figure, table.title, 520, table.note)


def last_steps(table: Table) -> Table:
    """The rows of the last step."""
    return Table(table.title, f"at the last step; {table.note}", table.where(step=int(max(table.numbers(STEP)))).frame)


def by_seed(table: Table, model: str) -> list[Table]:
    """The history of every run of a model."""
    runs = table.where(**{MODEL: model})
    return [runs.where(**{SEED: seed}) for seed in unique_values(runs, SEED)]


def importances(table: Table) -> go.Figure:
    """Importance of the first token and of the slot, a row per model, beside the null of the first token."""
    figure = go.Figure()
    names = unique_values(table, MODEL)
    add_importances(figure, table, names)
    figure.update_xaxes(title="share of the attention", **PERCENT)
    figure.update_yaxes(type="category", autorange="reversed")
    caption = "Mean over the heads and seeds of each model; grey: the null of the first token."
    return themed(figure, table.title, 150 + 30 * len(names), f"{caption} {table.note}")


def add_importances(figure: go.Figure, table: Table, names: list[Cell], **panel: int) -> None:
    """Marks of the null, the slot and the first token of each model."""
    marker = {"color": GREY, "symbol": "line-ns", "size": 12, "line": {"width": 2, "color": GREY}}
    null = NULL if NULL in table.frame else f"null {ALPHA_1}"
    figure.add_scatter(x=means_of(table, names, null), y=names, name="null", mode="markers", marker=marker, **panel)
    if ALPHA_SLOT in table.frame and any(map(math.isfinite, table.numbers(ALPHA_SLOT))):
        figure.add_scatter(x=means_of(table, names, ALPHA_SLOT), y=names, name="slot", **dots(1, "diamond"), **panel)
    figure.add_scatter(x=means_of(table, names, ALPHA_1), y=names, name="first token", **dots(0, "circle"), **panel)


def dots(index: int, symbol: str) -> dict[str, object]:
    """Marks of one colour and shape, as attributes of a trace."""
    return {"mode": "markers", "marker": {"color": colour(index), "symbol": symbol, "size": 9}}
