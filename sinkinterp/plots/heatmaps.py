"""Attention maps and heads as heat maps."""

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots

from ..table import Table
from .columns import ALPHA_1, KEY_RATIO, LAYER, NULL, SINK_RATE, VALUE_RATIO
from .theme import MAGNITUDE, escaped, themed

AttentionMap = Float[np.ndarray, "query column"]  # a column is a key, or the slot, which comes first


def attention_maps(maps: Mapping[str, AttentionMap], title: str, note: str = "") -> go.Figure:
    """Mean attention maps side by side, equal in size, on one colour scale; a slot's column is labelled *."""
    figure = make_subplots(1, len(maps), subplot_titles=[escaped(name) for name in maps], horizontal_spacing=0.06)
    most_slots = max(pattern.shape[1] - pattern.shape[0] for pattern in maps.values())
    for i, pattern in enumerate(maps.values()):
        figure.add_trace(_map(pattern, has_scale=i == len(maps) - 1), row=1, col=i + 1)
        _add_axes(figure, pattern, most_slots, i)
    figure.update_yaxes(title="query position", row=1, col=1)
    figure.update_xaxes(showgrid=False).update_yaxes(showgrid=False)
    caption = (
        "Mean attention of every query (row) over what it sees (columns), over sequences; rows from the top, positions "
        "from 0."
    )
    return themed(figure, title, 440, f"{caption} {note}")


def _add_axes(figure: go.Figure, pattern: AttentionMap, most_slots: int, i: int) -> None:
    """Axes of map `i`, with as many columns as the map with most slots has, so that all maps have one size."""
    place, length = {"row": 1, "col": i + 1}, pattern.shape[0]
    ticks, slots = list(range(0, length, max(1, length // 8))), list(range(length - pattern.shape[1], 0))
    figure.update_xaxes(
        title="key position" + (" (* slot)" if slots else ""),
        range=[-most_slots - 0.5, length - 0.5],
        tickvals=slots + ticks,
        ticktext=["*"] * len(slots) + list(map(str, ticks)),
        tickangle=0,
        zeroline=False,
        constrain="domain",
        **place,
    )
    scale = {"scaleanchor": f"x{i + 1 if i else ''}", "constrain": "domain"}
    figure.update_yaxes(range=[length - 0.5, -0.5], tickvals=ticks, zeroline=False, **scale, **place)


def _map(pattern: AttentionMap, has_scale: bool) -> go.Heatmap:
    n_queries, n_columns = pattern.shape
    n_slots = n_columns - n_queries
    queries, keys = np.arange(n_queries), np.arange(n_columns) - n_slots
    is_future = keys[None, :] > queries[:, None]
    return go.Heatmap(
        z=np.where(is_future, np.nan, pattern),
        x=keys,
        y=queries,
        text=[["slot *" if key < 0 else f"key {key}" for key in keys]] * n_queries,
        zmin=0,
        zmax=1,
        colorscale=MAGNITUDE,
        showscale=has_scale,
        colorbar={"title": "attention"},
        hovertemplate="query %{y} to %{text}: %{z:.3f}<extra></extra>",
    )


def heads_overview(table: Table) -> go.Figure:
    """Importance of the first position for every layer and head; from `tables.sinks_by_head`."""
    layers = list(dict.fromkeys(table.column(LAYER)))
    n_heads = len(table.rows) // len(layers)

    def grid(column: str) -> np.ndarray:
        return np.array(table.numbers(column)).reshape(len(layers), n_heads)

    figure = go.Figure(
        go.Heatmap(
            z=grid(ALPHA_1),
            x=[str(head) for head in range(n_heads)],
            y=[str(layer) for layer in layers],
            zmin=0,
            zmax=1,
            colorscale=MAGNITUDE,
            colorbar={"title": ALPHA_1},
            customdata=np.stack([grid(column) for column in (NULL, SINK_RATE, VALUE_RATIO, KEY_RATIO)], -1),
            hovertemplate=(
                "layer %{y}, head %{x}<br>alpha_1 %{z:.3f} (uniform %{customdata[0]:.3f})<br>"
                "sink rate %{customdata[1]:.1%}<br>"
                "value ratio %{customdata[2]:.2f}, key ratio %{customdata[3]:.2f}<extra></extra>"
            ),
        )
    )
    figure.update_xaxes(title="head", type="category")
    figure.update_yaxes(title="layer", type="category", autorange="reversed")
    caption = "Importance of the first position: mean attention from the queries that can see it, over sequences."
    per_layer = max(16, min(36, 480 // len(layers)))  # points of height
    return themed(figure, table.title, 200 + per_layer * len(layers), f"{caption} {table.note}")
