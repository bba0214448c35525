"""Massive activations: the residual stream as a surface over tokens and channels (Sun et al. 2024)."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots

from ..table import Table
from .columns import BLOCK
from .theme import MAGNITUDE, colour, escaped, themed
from .traces import error_bars, positive_axis

PEAK = "max |x|"
PEAK_OVER_MEDIAN = "max / median"
KURTOSIS = "kurtosis"
USUAL_ENTRY = "usual entry"
PANELS = {PEAK: "largest |x|", PEAK_OVER_MEDIAN: "largest / median |x|", KURTOSIS: "kurtosis over channels"}

_CAMERA = {"eye": {"x": 1.0, "y": -1.6, "z": 0.75}, "center": {"x": 0, "y": 0, "z": -0.15}}


def surface(
    sizes: Float[np.ndarray, "pos run"], channels: Sequence[int], tokens: Sequence[str], title: str, note: str
) -> go.Figure:
    """Residual magnitudes over positions and channels, as in `tables.Surface`; `channels`: the first of every run."""
    texts = np.array([[escaped(token)] * len(channels) for token in tokens])
    figure = go.Figure(
        go.Surface(
            z=sizes,
            x=list(channels),
            y=list(range(len(tokens))),
            text=texts,
            colorscale=MAGNITUDE,
            cmin=0,
            colorbar={"title": "|x|", "len": 0.7},
            contours={"z": {"highlight": False}},
            hovertemplate="position %{y} (%{text}), channel %{x}: %{z:.4g}<extra></extra>",
        )
    )
    axes = {"xaxis": "channel", "yaxis": "position", "zaxis": "|x|, magnitude"}
    scene = {axis: {"title": {"text": text}} for axis, text in axes.items()}
    figure.update_layout(scene={**scene, "camera": _CAMERA, "aspectratio": {"x": 1.6, "y": 1, "z": 0.7}})
    caption = "Magnitude of every residual entry; of a run of channels, the largest."
    themed(figure, title, 560, f"{caption} {note}")
    return figure.update_layout(margin={"l": 0, "r": 0, "t": 60, "b": 0})


def by_block(table: Table) -> go.Figure:
    """Largest entry, its multiple of the median, and kurtosis over channels; from `tables.massive_by_block`."""
    figure = make_subplots(1, len(PANELS), subplot_titles=list(PANELS.values()), horizontal_spacing=0.09)
    for i, (column, title) in enumerate(PANELS.items()):
        place = {"row": 1, "col": i + 1}
        figure.add_scatter(
            x=table.column(BLOCK),
            y=table.numbers(column),
            error_y=error_bars(table, column),
            name=title,
            mode="lines+markers",
            line={"color": colour(0)},
            marker={"size": 8},
            showlegend=False,
            text=list(map(escaped, table.column(USUAL_ENTRY))),
            hovertemplate="%{y:.4g}, %{text}<extra></extra>",
            **place,
        )
        figure.update_yaxes(**positive_axis(table.numbers(column)), **place)
    figure.update_xaxes(title="block (0: embedding)")
    caption = "Largest residual entry of a sequence, over the median entry, and the kurtosis of the channels."
    return themed(figure, table.title, 380, f"{caption} {table.note}")
