"""Figures and tables of models that were trained: with several seeds side by side, and over optimiser steps."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..plots.theme import PERCENT, add_band, add_curve, colour, escaped, model_numbers, themed, unique_values
from ..table import MODEL, SEED, Cell, Table, high_of, low_of

STEP = "step"
VALID_LOSS = "valid_loss"
SINK_OF_FIRST = "sink_1"
SINK_OF_SLOT = "sink_slot"


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
