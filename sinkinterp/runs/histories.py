"""Training over optimiser steps (Gu et al. 2025, Figures 4, 28 and 30)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..plots.series import PERCENT, add_curve, unique_values
from ..plots.theme import escaped, model_numbers, themed
from ..report.columns import MODEL, SEED
from ..table import Cell, Table

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
FINE_TUNING = (  # Gu et al. 2025, Figure 30, with the sink beside it
    Panel(VALID_LOSS, "validation loss (nats)"),
    Panel(GRADIENT_NORM, "gradient norm"),
    Panel(SINK_OF_FIRST, "Sink_1 (share of heads)", PERCENT),
)


def training(table: Table, chosen: Sequence[Panel] = PANELS) -> go.Figure:
    """Validation loss and sink rates, or what is chosen, over optimiser steps, a line per run.

    The table is that of `training_history`. Columns that no run holds have no panel.
    """
    panels = [panel for panel in chosen if _is_known(table, panel.column)]
    titles = [panel.title for panel in panels]
    figure = make_subplots(1, len(panels), subplot_titles=titles, horizontal_spacing=0.24 / max(3, len(panels)))
    for model, i in model_numbers(unique_values(table, MODEL)).items():
        rows = table.where(**{MODEL: model})
        for j, panel in enumerate(panels):
            named = {"name": escaped(model), "legendgroup": model, "showlegend": j == 0}
            add_curve(figure, rows, STEP, panel.column, i, **named, connectgaps=True, row=1, col=j + 1)
    figure.update_xaxes(title="optimiser step")
    for j, panel in enumerate(panels):
        figure.update_yaxes(**panel.axis, row=1, col=j + 1)
    names = ", ".join(panel.title for panel in panels)
    caption = f"{names[:1].upper()}{names[1:]} along training, on held-out sequences. {table.note}"
    return themed(figure, table.title, caption=caption)


def _is_known(table: Table, column: str) -> bool:
    return column in table.columns and any(cell is not None for cell in table.column(column))


def training_history(histories: Mapping[str, Iterable[Mapping[str, Any]]], note: str) -> Table:
    """What was watched along training runs, by name (rows of history.json); what a run did not watch is missing.

    `note` says on what: n, T, BOS, epsilon.
    """
    watched = [{MODEL: name, **row} for name, rows in histories.items() for row in rows]
    columns = dict.fromkeys(column for row in watched for column in row)
    rows: tuple[dict[str, Cell], ...] = tuple({column: row.get(column) for column in columns} for row in watched)
    return Table("Losses and sinks over training", note, rows, training)


def last_steps(table: Table) -> Table:
    """The rows of the last step."""
    return Table(table.title, f"at the last step; {table.note}", table.where(step=int(max(table.numbers(STEP)))).rows)


def by_seed(table: Table, model: str) -> list[Table]:
    """The history of every run of a model."""
    runs = table.where(**{MODEL: model})
    return [runs.where(**{SEED: seed}) for seed in dict.fromkeys(runs.column(SEED))]
