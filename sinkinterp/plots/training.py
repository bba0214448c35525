"""Training and fine-tuning over optimiser steps (Gu et al. 2025, Figures 4, 28 and 30); from `tables.history`."""

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..table import Table
from .theme import colour, label, themed
from .traces import MARKS, PERCENT, distinct

Panels = Mapping[str, tuple[str, Mapping[str, Any]]]  # column of the table -> its words, its axis
PANELS: Panels = {
    "valid_loss": ("validation loss (nats)", {}),
    "sink_1": ("Sink_1 (share of heads)", PERCENT),
    "sink_slot": ("Sink_* (slot, share of heads)", PERCENT),
}
TUNING: Panels = {
    "train_loss": ("training loss (nats)", {}),
    "grad_norm": ("gradient norm", {"rangemode": "tozero"}),
    "valid_loss": ("held-out loss (nats)", {}),
    "sink_1": ("Sink_1 (share of heads)", PERCENT),
}


def training(table: Table) -> go.Figure:
    """Validation loss and sink rates over optimiser steps, a line per run."""
    return over_steps(table, PANELS, "Validation loss and sink rates of held-out sequences along training.")


def finetuning(table: Table) -> go.Figure:
    """Loss, gradient norm and Sink_1 over the steps of fine-tuning, a line per run."""
    return over_steps(table, TUNING, "Loss, norm of the gradient before clipping, and sink rate along fine-tuning.")


def over_steps(table: Table, panels: Panels, words: str) -> go.Figure:
    """A panel for each of the columns that some run watched."""
    shown = [name for name in panels if name in table.columns and any(c is not None for c in table.column(name))]
    titles = [panels[name][0] for name in shown]
    figure = make_subplots(1, len(shown), subplot_titles=titles, horizontal_spacing=0.24 / max(3, len(shown)))
    for i, model in enumerate(distinct(table, "model")):
        rows = table.where(model=model)
        for column, quantity in enumerate(shown):
            figure.add_scatter(
                x=rows.column("step"), y=rows.column(quantity), name=label(model), legendgroup=model,
                mode="lines+markers", line={"color": colour(i)}, connectgaps=True, showlegend=column == 0,
                marker={"symbol": MARKS[i % len(MARKS)], "size": 6}, row=1, col=column + 1,
            )  # fmt: skip
    figure.update_xaxes(title="optimiser step")
    for column, name in enumerate(shown):
        figure.update_yaxes(**panels[name][1], row=1, col=column + 1)
    return themed(figure, table.title, caption=f"{words} {table.note}")
