"""Figures beside the paper's numbers, and tables of runs over steps."""

from typing import Any

import plotly.graph_objects as go

from sinkinterp.plots.theme import colour, error_bars, escaped, themed, unique_values
from sinkinterp.report.readings import short_name
from sinkinterp.runs.training_figures import STEP
from sinkinterp.table import MODEL, SEED, Table

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
