"""Massive activations: the residual stream as a surface over tokens and channels (Sun et al. 2024)."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots

from ..table import Table
from .theme import MAGNITUDE, colour, label, themed
from .traces import interval, span

_CAMERA = {"eye": {"x": 1.0, "y": -1.6, "z": 0.75}, "center": {"x": 0, "y": 0, "z": -0.15}}


def surface(
    sizes: Float[np.ndarray, "pos run"], channels: Sequence[int], tokens: Sequence[str], title: str, note: str
) -> go.Figure:
    """Residual magnitudes over positions and channels; `channels`: the first of every run, as in `tables.surface`."""
    words = np.array([[label(token)] * len(channels) for token in tokens])
    figure = go.Figure(
        go.Surface(
            z=sizes, x=list(channels), y=list(range(len(tokens))), text=words, colorscale=MAGNITUDE, cmin=0,
            colorbar={"title": "|x|", "len": 0.7}, contours={"z": {"highlight": False}},
            hovertemplate="position %{y} (%{text}), channel %{x}: %{z:.4g}<extra></extra>",
        )
    )  # fmt: skip
    axes = {"xaxis": "channel", "yaxis": "position", "zaxis": "|x|, magnitude"}
    figure.update_layout(
        scene={axis: {"title": {"text": text}} for axis, text in axes.items()}
        | {"camera": _CAMERA, "aspectratio": {"x": 1.6, "y": 1, "z": 0.7}}
    )
    said = "Magnitude of every residual entry; of a run of channels, the largest."
    themed(figure, title, 560, f"{said} {note}")
    return figure.update_layout(margin={"l": 0, "r": 0, "t": 60, "b": 0})


def by_block(table: Table) -> go.Figure:
    """Largest entry, its multiple of the median, and kurtosis over channels, by block; from `tables.massive`."""
    quantities = {
        "max |x|": "largest |x|",
        "max / median": "largest / median |x|",
        "kurtosis": "kurtosis over channels",
    }
    figure = make_subplots(1, len(quantities), subplot_titles=list(quantities.values()), horizontal_spacing=0.09)
    for column, (quantity, words) in enumerate(quantities.items()):
        place = {"row": 1, "col": column + 1}
        figure.add_scatter(
            x=table.column("block"), y=table.numbers(quantity), error_y=interval(table, quantity), name=words,
            mode="lines+markers", line={"color": colour(0)}, marker={"size": 8}, showlegend=False,
            text=list(map(label, table.column("usual entry"))), hovertemplate="%{y:.4g}, %{text}<extra></extra>",
            **place,
        )  # fmt: skip
        figure.update_yaxes(**span(table.numbers(quantity)), **place)
    figure.update_xaxes(title="block (0: embedding)")
    words = "Largest residual entry of a sequence, over the median entry, and the kurtosis of the channels."
    return themed(figure, table.title, 380, f"{words} {table.note}")
