"""Maps of the sink over layers and heads, beside the norm of the residual stream by block."""

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..table import Table
from .columns import ALPHA_1, BLOCK, HEAD, LAYER
from .norms import KIND, NORM
from .theme import MAGNITUDE, colour, escaped, themed
from .traces import MARKERS, positive_axis, unique_values

PER_BLOCK = 15  # points of height
MAP_WIDTH = 0.24  # of the figure
DASHES = ("solid", "dot", "dash", "dashdot")


def maps_and_norms(maps: Mapping[str, Table], norms: Table, title: str) -> go.Figure:
    """alpha_1 per layer and head, a map per input; beside it residual norms on the same axis of blocks.

    maps: by the name of the input, from `tables.sinks_by_head`. norms: a row per kind of token and block.
    """
    n_maps, blocks = len(maps), unique_values(norms, BLOCK)
    titles = [*(f"alpha_1, {escaped(name)}" for name in maps), "norm of the residual stream before each layer"]
    widths = [MAP_WIDTH] * n_maps + [1 - MAP_WIDTH * n_maps]
    figure = make_subplots(
        1, n_maps + 1, subplot_titles=titles, shared_yaxes=True, column_widths=widths, horizontal_spacing=0.03
    )
    for i, table in enumerate(maps.values(), 1):
        figure.add_trace(_map(table, centre=(1 - 0.03 * n_maps) * MAP_WIDTH * n_maps / 2), row=1, col=i)
        figure.update_xaxes(title="head", dtick=1, showgrid=False, row=1, col=i)
    _add_norms(figure, norms, col=n_maps + 1)
    figure.update_yaxes(range=[len(blocks) - 0.5, -0.5], dtick=2, zeroline=False)
    figure.update_yaxes(title="layer", row=1, col=1)
    caption = (
        "Left: mean attention to the first position, per layer and head. Right: mean norm of the residual stream "
        "before each layer, by kind of token; the last point is the output of the last layer."
    )
    note = next(iter(maps.values())).note
    themed(figure, title, 220 + PER_BLOCK * len(blocks), f"{caption} {note}")
    return figure.update_layout(margin={"b": 110}, legend={"x": 1, "xanchor": "right", "y": 1.06})


def _map(table: Table, centre: float) -> go.Heatmap:
    """The map, with the colour scale that all maps share below it, at `centre` from the left."""
    layers, heads = unique_values(table, LAYER), unique_values(table, HEAD)
    scale = {"orientation": "h", "thickness": 12, "len": 0.3, "x": centre, "y": -0.14, "yanchor": "top"}
    return go.Heatmap(
        z=np.array(table.numbers(ALPHA_1)).reshape(len(layers), len(heads)),
        x=heads,
        y=layers,
        zmin=0,
        zmax=1,
        colorscale=MAGNITUDE,
        colorbar={"title": {"text": ALPHA_1, "side": "bottom"}, **scale},
        hovertemplate="layer %{y}, head %{x}: %{z:.3f}<extra></extra>",
    )


def _add_norms(figure: go.Figure, norms: Table, col: int) -> None:
    """A line per kind of token."""
    for i, kind in enumerate(unique_values(norms, KIND)):
        rows = norms.where(**{KIND: kind})
        figure.add_scatter(
            x=rows.numbers(NORM),
            y=rows.column(BLOCK),
            mode="lines+markers",
            name=escaped(kind),
            line={"color": colour(i), "dash": DASHES[i % len(DASHES)], "width": 2},
            marker={"symbol": MARKERS[i % len(MARKERS)], "size": 5 + 3 * (i == 0)},
            row=1,
            col=col,
        )
    axis = {**positive_axis(norms.numbers(NORM)), "dtick": 1}
    figure.update_xaxes(title="mean Euclidean norm", **axis, row=1, col=col)
