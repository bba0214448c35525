"""Figures and tables of models that were trained: with several seeds side by side, and over optimiser steps."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..plots.theme import GREY, PERCENT, add_band, add_curve, colour, escaped, model_numbers, themed, unique_values
from ..table import ALPHA_1, ALPHA_SLOT, MODEL, NULL, SEED, Cell, Table, high_of, low_of


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


def means_of(table: Table, names: list[Cell], quantity: str) -> list[float]:
    """The mean of a quantity over the rows of each model."""
    values = (table.where(**{MODEL: name}).numbers(quantity) for name in names)
    return [fmean([*filter(math.isfinite, each)] or [math.nan]) for each in values]


STEP = "step"
VALID_LOSS = "valid_loss"
SINK_OF_FIRST = "sink_1"
SINK_OF_SLOT = "sink_slot"
GRADIENT_NORM = "grad_norm"


@dataclass(frozen=True)
class Panel:
    """A column that is drawn over steps, the title of its panel, and its axis."""

    column: str
    title: str
    axis: Mapping[str, Any] = field(default_factory=dict)


PANELS = (
    Panel(VALID_LOSS, "validation loss (nats)"),
    Panel(SINK_OF_FIRST, "Sink_1 (share of heads)", PERCENT),
    Panel(SINK_OF_SLOT, "Sink_* (slot, share of heads)", PERCENT),
)


def training(table: Table, chosen: Sequence[Panel] = PANELS) -> go.Figure:
    """Validation loss and sink rates, or what is chosen, over optimiser steps, a line per model.

    The table is that of `training_history`. Columns that no run holds have no panel. Of several seeds, the line is the
    mean, in a band from the least to the most.
    """
    known = table.frame.dropna(axis="columns", how="all")
    panels = [panel for panel in chosen if panel.column in known]
    titles = [panel.title for panel in panels]
    figure = make_subplots(1, len(panels), subplot_titles=titles, horizontal_spacing=0.24 / max(3, len(panels)))
    for model, i in model_numbers(unique_values(table, MODEL)).items():
        rows = table.where(**{MODEL: model})
        for j, panel in enumerate(panels):
            place, column = {"row": 1, "col": j + 1}, panel.column
            mean = _over_seeds(rows, column)
            add_band(figure, mean, STEP, column, str(model), place, colour(i))
            named = {"name": escaped(model), "legendgroup": model, "showlegend": j == 0}
            look = {"connectgaps": True, "error_y": None, "mode": "lines" if len(mean.frame) > 40 else "lines+markers"}
            add_curve(figure, mean, STEP, column, i, **named, **look, **place)
    figure.update_xaxes(title="optimiser step")
    for j, panel in enumerate(panels):
        figure.update_yaxes(**panel.axis, row=1, col=j + 1)
    names = ", ".join(panel.title for panel in panels)
    seeds = " Line and band: mean, least and most of the seeds." * (
        SEED in table.frame and table.frame[SEED].nunique() > 1
    )
    caption = f"{names[:1].upper()}{names[1:]} along training, on held-out sequences.{seeds} {table.note}"
    return themed(figure, table.title, caption=caption)


def _over_seeds(rows: Table, column: str) -> Table:
    """The mean of a column at each step and, where several seeds trained, the least and the most as its interval."""
    several = SEED in rows.frame and rows.frame[SEED].nunique() > 1
    names = {"mean": column} | ({"min": low_of(column), "max": high_of(column)} if several else {})
    frame = rows.frame.groupby(STEP, sort=True)[column].agg([*names])
    return Table("", "", frame.rename(columns=names).reset_index())


def training_history(histories: Mapping[str, Iterable[Mapping[str, Any]]], note: str) -> Table:
    """The numbers that were watched along training runs, by name (rows of history.json); others are missing.

    `note` says on what: n, T, BOS, epsilon.
    """
    watched = [{MODEL: name, **row} for name, rows in histories.items() for row in rows]
    columns = dict.fromkeys(column for row in watched for column in row)
    rows: tuple[dict[str, Cell], ...] = tuple({column: row.get(column) for column in columns} for row in watched)
    return Table.of("Losses and sinks over training", note, rows, training)
