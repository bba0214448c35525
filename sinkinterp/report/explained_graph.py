"""A small graph of parts and the heads that they lead to, beside a head's map: layers downwards, lines by share."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots

from ..plots.theme import COLOURS, GREY, MAGNITUDE, escaped, themed

WIDEST = 12  # points, of a line whose share is 1
NOTHING = "nothing"  # is cut
Edge = tuple[str, str, float]  # from, to, share


@dataclass(frozen=True)
class CutMap:
    """A head's mean attention map with one part cut, whose name is NOTHING for the model as it is, and the loss.

    A column left of the first key is the slot's.
    """

    cut: str
    weights: Float[np.ndarray, "query column"]
    loss: float

    def sentence(self, untouched: "CutMap") -> str:
        """What became of the sink and of the loss."""
        share = f"{self.cut} cut: {self.weights[:, 0].mean():.2f} to the first, loss {self.loss:.2f}"
        return share if self.cut == NOTHING else f"{share} ({self.loss - untouched.loss:+.2f})"


def graph(edges: Sequence[Edge], title: str, caption: str, maps: Sequence[CutMap] = ()) -> go.Figure:
    """The graph of the edges. Names hold their layer, as in "MLP 1" or "head 3.7".

    `maps`, whose first has nothing cut, stand beside it: a click on a part, or the menu, shows the map where it is cut.
    """
    figure = make_subplots(1, 2 if maps else 1, horizontal_spacing=0.1)
    places = _places(edges)
    for start, end, share in edges:
        (x0, y0), (x1, y1) = places[start], places[end]
        line = {"width": max(1, WIDEST * min(abs(share), 1)), "color": COLOURS[0] if share > 0 else COLOURS[1]}
        figure.add_scatter(x=[x0, x1], y=[y0, y1], mode="lines", line=line, opacity=0.5, hoverinfo="skip")
        along = 0.3 if start.startswith("neuron") else 0.6
        middle = {"x": x0 + along * (x1 - x0), "y": y0 + along * (y1 - y0)}
        figure.add_annotation(text=f"{share:.0%}", showarrow=False, font={"size": 12}, xshift=18, **middle)
    heads = {name for name in places if name.startswith("head") and any(end == name for _, end, _ in edges)}
    cuts = [cut_map.cut for cut_map in maps]
    figure.add_scatter(
        x=[x for x, _ in places.values()],
        y=[y for _, y in places.values()],
        mode="markers+text",
        text=list(map(escaped, places)),
        textposition=["bottom center" if name in heads else "top center" for name in places],
        customdata=[name if name in cuts else NOTHING for name in places],
        marker={"size": 18, "color": [COLOURS[2] if name in heads else GREY for name in places]},
        hovertemplate="%{text}<extra></extra>" if not maps else "%{text}: click to cut %{customdata}<extra></extra>",
        cliponaxis=False,
    )
    depth = len({y for _, y in places.values()})
    figure.update_xaxes(visible=False, range=[-0.1, 1.1], fixedrange=True, row=1, col=1)
    figure.update_yaxes(visible=False, range=[depth - 0.5, -0.6], fixedrange=True, row=1, col=1)
    if maps:
        _add_maps(figure, maps)
        how = "Click a part, or choose in the menu, to cut it: at the first token it becomes its mean over others."
        caption = f"{how} Weights from 0 to 1. {caption}"
    themed(figure, title, max(220 + 90 * depth, 520 if maps else 0), caption)
    return figure.update_layout(showlegend=False, margin={"t": 130 if maps else 90})


def _add_maps(figure: go.Figure, maps: Sequence[CutMap]) -> None:
    """One heat map for each cut, of which the first is seen, and a menu that chooses."""
    n_before, length = len(figure.data), len(maps[0].weights)
    for i, cut_map in enumerate(maps):
        choice = {"meta": {"choice": cut_map.cut}, "visible": i == 0}
        weights = np.where(np.triu(np.ones((length, length)), 1) > 0, np.nan, cut_map.weights[:, -length:])
        if cut_map.weights.shape[1] > length:
            weights = np.concatenate((cut_map.weights[:, :1], weights), 1)
        figure.add_heatmap(
            z=weights.round(4),
            zmin=0,
            zmax=1,
            colorscale=MAGNITUDE,
            showscale=False,
            hovertemplate="query %{y}, key %{x}: %{z}<extra></extra>",
            hoverongaps=False,
            row=1,
            col=2,
            **choice,
        )
        said = {"text": [cut_map.sentence(maps[0])], "mode": "text", "hoverinfo": "skip", "textfont": {"size": 12}}
        figure.add_scatter(x=[length / 2], y=[-0.06 * length], row=1, col=2, cliponaxis=False, **said, **choice)
    buttons = []
    for i, cut_map in enumerate(maps):
        seen = [True] * n_before + [j == i for j in range(len(maps)) for _ in range(2)]
        buttons.append({"label": f"cut: {cut_map.cut}", "method": "restyle", "args": [{"visible": seen}]})
    menu = {"buttons": buttons, "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"}
    figure.update_layout(updatemenus=[menu])
    figure.update_xaxes(title="key", showgrid=False, row=1, col=2)
    figure.update_yaxes(title="query", showgrid=False, range=[length - 0.5, -0.12 * length], row=1, col=2)


def _places(edges: Sequence[Edge]) -> dict[str, tuple[float, float]]:
    """Where each node stands: as deep as its layer, and beside those of its depth."""
    depth = {name: _layer(name) for edge in edges for name in edge[:2]}
    for start, end, _ in edges:  # a neuron stands above the layer that it belongs to
        if start.startswith("neuron"):
            depth[start] = depth[end] - 0.5
    levels = sorted(set(depth.values()))
    rows = [[name for name in depth if depth[name] == level] for level in levels]
    single = {y: 0.5 + 0.17 * (y % 3 - 1) for y, row in enumerate(rows[:-1]) if len(row) == 1}  # no line through a node
    return {
        name: (single.get(y, (i + 0.5) / len(row)), float(y))
        for y, row in enumerate(rows)
        for i, name in enumerate(row)
    }


def _layer(name: str) -> float:
    """Twice the layer; a feed-forward layer comes after the heads of its block."""
    numbers = re.findall(r"\d+", name)
    return -1.0 if not numbers else 2 * float(numbers[0]) + (1 if name.startswith("MLP") else 0)
