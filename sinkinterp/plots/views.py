"""Which figure is made of a table: the one that needs its columns."""

from collections.abc import Callable
from dataclasses import replace

import plotly.graph_objects as go

from ..errors import InputError
from ..table import Table
from . import curves, heatmaps, massive, norms, qk, swaps, sweeps, training
from .columns import (
    ALPHA_1,
    BLOCK,
    COSINE,
    EDIT,
    EPSILON,
    HEAD,
    INPUT,
    KEY_RATIO,
    LAYER,
    LENGTH,
    MODEL,
    NULL,
    POSITION,
    QUANTITY,
    SINK_1,
    SINK_RATE,
    SINK_T,
    TARGET,
    VALUE_RATIO,
)

Draw = Callable[[Table], go.Figure]

CHANGE = "change"  # of a sweep's metric
DOMAIN = "domain"


def _heads(table: Table) -> go.Figure:
    """The grid, also of rows in another order."""
    rows = sorted(table.rows, key=lambda row: (float(row[LAYER] or 0), float(row[HEAD] or 0)))
    n_layers, n_heads = (len(set(table.column(name))) for name in (LAYER, HEAD))
    if len(rows) != n_layers * n_heads:
        raise InputError(f"{len(rows)} heads fill no grid of {n_layers} layers; draw the table of all: report.heads()")
    return heatmaps.heads_overview(replace(table, rows=tuple(rows)))


def _changes(table: Table) -> go.Figure:
    return sweeps.sweep_figure(table, EDIT, (CHANGE,))


def _domains(table: Table) -> go.Figure:
    return sweeps.sweep_figure(table, DOMAIN, (SINK_1,))


FIGURES: tuple[tuple[set[str], Draw], ...] = (
    ({LAYER, HEAD, ALPHA_1, NULL, SINK_RATE, VALUE_RATIO, KEY_RATIO}, _heads),
    ({LAYER, HEAD, qk.mean_of(COSINE, qk.FIRST_KEY)}, qk.by_layer),
    ({QUANTITY, qk.BIN_START, qk.BIN_END, *qk.KEYS}, qk.distributions),
    ({POSITION, SINK_RATE, curves.ALPHA, curves.NULL_ALPHA}, curves.by_position),
    ({EPSILON, SINK_1, NULL, curves.LARGEST_OTHER}, curves.over_epsilon),
    ({MODEL, LENGTH, EPSILON, SINK_1, NULL}, curves.over_length),
    ({MODEL, BLOCK, norms.FIRST_TOKEN, norms.OTHER_TOKENS, norms.RATIO}, norms.ratios),
    ({QUANTITY, BLOCK, norms.KIND, norms.NORM}, norms.by_kind),
    ({BLOCK, massive.PEAK, massive.PEAK_OVER_MEDIAN, massive.KURTOSIS, massive.USUAL_ENTRY}, massive.by_block),
    ({INPUT, EDIT, TARGET, SINK_1, SINK_T}, swaps.swap_chart),
    ({MODEL, training.STEP, training.VALID_LOSS}, training.training),
    ({EDIT, CHANGE}, _changes),
    ({DOMAIN, SINK_1}, _domains),
)


def figure_of(table: Table) -> go.Figure:
    """The figure of a table. Raises InputError for a table that none is made of."""
    for columns, draw in FIGURES:
        if columns <= set(table.columns):
            return draw(table)
    raise InputError(f"no figure is made of {table.title!r}; print it, or take table.to_pandas() and draw that")
