"""What a model loses when its cache forgets first tokens: the figures of losses, of heads and of generation."""

import numpy as np
import plotly.graph_objects as go

from ..plots.series import sweep_figure
from ..plots.theme import MAGNITUDE, themed
from ..plots.traces import unique_values
from ..table import Cell, Table
from .columns import HEAD, LAYER

KEPT, WINDOW, PLACES, CACHE = "first tokens kept", "window", "positions", "cache"
ADDED, CONTROL = "added loss", "control added loss"
FEWEST = "fewest first tokens"
GENERATED, STAYS, MOVED, SINKS, ALPHA = (
    "generated tokens",
    "sink on the first",
    "sink elsewhere",
    "sinks a head",
    "alpha_1",
)


def losses_figure(table: Table) -> go.Figure:
    """The added loss over the first tokens kept: a line for every window and counting of positions."""
    named = table.with_rows({CACHE: f"window {row[WINDOW]}, positions {row[PLACES]}", **row} for row in table.rows)
    return sweep_figure(named, KEPT, (ADDED,), by=CACHE)


def memory_figure(table: Table) -> go.Figure:
    """The added loss of every rule of eviction, as a mark with its interval."""
    return sweep_figure(table, CACHE, (ADDED,))


def generation_figure(table: Table) -> go.Figure:
    """The first token's attention and the shares of heads with sinks, by part of the generated text."""
    return sweep_figure(table, GENERATED, (ALPHA, STAYS, MOVED, SINKS))


def heads_figure(table: Table) -> go.Figure:
    """The fewest first tokens of every head as a map; white where even the most that were tried are not enough."""
    layers, heads = unique_values(table, LAYER), unique_values(table, HEAD)
    tried = sorted({int(n) for n in table.column(FEWEST) if n is not None})
    z = np.full((len(layers), len(heads)), np.nan)
    for row in table.rows:
        fewest: Cell = row[FEWEST]
        if fewest is not None:
            z[layers.index(row[LAYER]), heads.index(row[HEAD])] = tried.index(int(fewest))
    scale = {"tickvals": list(range(len(tried))), "ticktext": list(map(str, tried)), "title": "first tokens"}
    figure = go.Figure(
        go.Heatmap(z=z, x=heads, y=layers, colorscale=MAGNITUDE, zmin=0, zmax=max(1, len(tried) - 1), colorbar=scale)
    )
    figure.update_xaxes(title=HEAD, type="category")
    figure.update_yaxes(title=LAYER, type="category", autorange="reversed")
    return themed(figure, table.title, 240 + max(200, 16 * len(layers)), f"{FEWEST}; empty: more. {table.note}")
