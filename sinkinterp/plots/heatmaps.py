"""Attention maps and heads as heat maps."""

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots

from ..table import Table
from .theme import MAGNITUDE, label, themed


def attention_maps(maps: Mapping[str, Float[np.ndarray, "query column"]], title: str, note: str = "") -> go.Figure:
    """Mean attention maps side by side on one colour scale; a slot's column is labelled *."""
    figure = make_subplots(1, len(maps), subplot_titles=[label(name) for name in maps], horizontal_spacing=0.06)
    for i, pattern in enumerate(maps.values()):
        queries = np.arange(1, len(pattern) + 1)
        columns = ["*"] * (pattern.shape[1] - len(pattern)) + [str(k) for k in queries]
        future = np.arange(pattern.shape[1])[None, :] > queries[:, None] - 1 + pattern.shape[1] - len(pattern)
        figure.add_heatmap(
            z=np.where(future, np.nan, pattern), x=columns, y=queries, zmin=0, zmax=1, row=1, col=i + 1,
            colorscale=MAGNITUDE, showscale=i == len(maps) - 1, colorbar={"title": "attention"},
            hovertemplate="query %{y} to key %{x}: %{z:.3f}<extra></extra>",
        )  # fmt: skip
        figure.update_xaxes(title="key position (* slot)", type="category", constrain="domain", row=1, col=i + 1)
        figure.update_xaxes(tickangle=0, nticks=9, row=1, col=i + 1)
        figure.update_yaxes(type="category", constrain="domain", row=1, col=i + 1)
        figure.update_yaxes(autorange="reversed", scaleanchor=f"x{i + 1 if i else ''}", row=1, col=i + 1)
    figure.update_yaxes(title="query position", row=1, col=1)
    figure.update_xaxes(showgrid=False).update_yaxes(showgrid=False)
    words = "Mean attention of every query (row) over what it sees (columns), over sequences; rows from the top."
    return themed(figure, title, 440, f"{words} {note}")


def heads_overview(heads: Table) -> go.Figure:
    """Importance of the first position for every layer and head; from `tables.heads`."""
    layers = list(dict.fromkeys(heads.column("layer")))
    grid = {name: np.array(heads.numbers(name)).reshape(len(layers), -1) for name in heads.columns}
    details = ("null", "sink rate", "value ratio", "key ratio")
    figure = go.Figure(
        go.Heatmap(
            z=grid["alpha_1"],
            x=[str(head) for head in range(grid["head"].shape[1])], y=[str(layer) for layer in layers],
            zmin=0, zmax=1, colorscale=MAGNITUDE, colorbar={"title": "alpha_1"},
            customdata=np.stack([grid[name] for name in details], -1),
            hovertemplate=(
                "layer %{y}, head %{x}<br>alpha_1 %{z:.3f} (uniform %{customdata[0]:.3f})<br>"
                "sink rate %{customdata[1]:.1%}<br>"
                "value ratio %{customdata[2]:.2f}, key ratio %{customdata[3]:.2f}<extra></extra>"
            ),
        )
    )  # fmt: skip
    figure.update_xaxes(title="head", type="category")
    figure.update_yaxes(title="layer", type="category", autorange="reversed")
    words = "Importance of the first position: mean attention from the queries that can see it, over sequences."
    return themed(figure, heads.title, 200 + 36 * len(layers), f"{words} {heads.note}")
