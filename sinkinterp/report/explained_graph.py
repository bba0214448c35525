"""A small graph of parts and the heads that they lead to, beside a head's map: layers downwards, lines by share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots

from ..plots.theme import COLOURS, GREY, MAGNITUDE, escaped, themed
from ..table import Table

WIDEST = 12  # points, of a line whose share is 1
NOTHING = "nothing"  # is cut
_IN_BLOCK = {"head": 0.0, "neuron": 0.3, "MLP": 0.6, "bias": 0.6}  # how far down its block a part stands
WHAT, LINE, NAME, TO, SHARE = "what", "line", "name", "to", "share"  # columns of rows with a graph, and its rows
DRAWN = 0.1  # the least share of a line that is drawn of such rows
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
    """The graph of the edges. Names hold their block, as in "MLP 1", "head 3.7" or "neuron 1.25".

    `maps` are drawn beside it; the first has nothing cut. A click on a part shows the map with that part cut.
    """
    figure = make_subplots(1, 2 if maps else 1, horizontal_spacing=0.1)
    places, cuts = _places(edges), [cut_map.cut for cut_map in maps]
    for start, end, share in edges:
        (x0, y0), (x1, y1) = places[start], places[end]
        width = max(1, WIDEST * min(abs(share), 1))
        line = {"width": width, "color": COLOURS[0] if share > 0 else COLOURS[1]}
        says = f"{escaped(start)} to {escaped(end)}: {share:.0%}<extra></extra>"
        size = [0, max(14, 2 * width)]
        marker = {"symbol": "arrow", "angleref": "previous", "size": size, "standoff": 9, "color": line["color"]}
        asked = [name if name in cuts else NOTHING for name in (start, end)]  # an end lies under the pointer on a node
        style = {"mode": "lines+markers", "line": line, "marker": marker, "opacity": 0.5, "customdata": asked}
        figure.add_scatter(x=[x0, x1], y=[y0, y1], hovertemplate=says, **style)
    depth = 1 + max(y for _, y in places.values())
    starts = {start for start, _, _ in edges}
    is_last = [name not in starts for name in places]
    beside = _beside(places)
    figure.add_scatter(
        x=[x for x, _ in places.values()],
        y=[y for _, y in places.values()],
        mode="markers+text",
        text=list(map(escaped, places)),
        textposition=["bottom center" if last else beside[name] for name, last in zip(places, is_last, strict=True)],
        customdata=[name if name in cuts else NOTHING for name in places],
        marker={"size": 18, "color": [COLOURS[2] if last else GREY for last in is_last]},
        hovertemplate="%{text}: click to cut %{customdata}<extra></extra>" if maps else "%{text}<extra></extra>",
        cliponaxis=False,
    )
    figure.update_xaxes(visible=False, range=[-0.1, 1.1], fixedrange=True, row=1, col=1)
    figure.update_yaxes(visible=False, range=[depth - 0.5, -0.6], fixedrange=True, row=1, col=1)
    if maps:
        _add_maps(figure, maps)
        how = (
            "Click a part to cut it: at the first token it becomes its mean over the others. A click on the head undoes"
        )
        caption = f"{how} it. Weights from 0 to 1. {caption}"
    themed(figure, title, max(220 + int(90 * depth), 520 if maps else 0), caption)
    return figure.update_layout(showlegend=False, margin={"t": 90})


def graph_of_rows(table: Table) -> go.Figure:
    """The graph of the lines in a table; lines below a tenth are left out."""
    lines = [(str(row[NAME]), str(row[TO]), float(row[SHARE] or 0)) for row in table.where(**{WHAT: LINE}).rows]
    return graph([line for line in lines if line[2] >= DRAWN], "Where the sink comes from", table.note)


def _add_maps(figure: go.Figure, maps: Sequence[CutMap]) -> None:
    """Draws a heat map for each cut, with its sentence above it. The first one is visible."""
    length, width = maps[0].weights.shape
    later = np.triu(np.ones((length, width)), 1 + width - length) > 0
    hover = {"hovertemplate": "query %{y}, key %{x}: %{z}<extra></extra>", "hoverongaps": False}
    above = {"x": [length / 2], "y": [-0.06 * length], "mode": "text", "hoverinfo": "skip", "textfont": {"size": 12}}
    for i, cut_map in enumerate(maps):
        choice = {"meta": {"choice": cut_map.cut}, "visible": i == 0, "row": 1, "col": 2}
        z = np.where(later, np.nan, cut_map.weights).round(4)
        figure.add_heatmap(z=z, zmin=0, zmax=1, colorscale=MAGNITUDE, showscale=False, **hover, **choice)
        figure.add_scatter(text=[cut_map.sentence(maps[0])], cliponaxis=False, **above, **choice)
    figure.update_xaxes(title="key", showgrid=False, row=1, col=2)
    figure.update_yaxes(title="query", showgrid=False, range=[length - 0.5, -0.12 * length], row=1, col=2)


def _places(edges: Sequence[Edge]) -> dict[str, tuple[float, float]]:
    """The place of each node: as deep as its layer, and beside the others of its depth."""
    depths = {name: _depth(name) for edge in edges for name in edge[:2]}
    rows = [[name for name in depths if depths[name] == depth] for depth in sorted(set(depths.values()))]
    aside = [0.17 * (y % 3 - 1) * (len(row) == 1) for y, row in enumerate(rows[:-1])] + [0.0]  # no line through a node
    return {
        name: ((i + 0.5) / len(row) + aside[y], float(y)) for y, row in enumerate(rows) for i, name in enumerate(row)
    }


def _beside(places: Mapping[str, tuple[float, float]]) -> dict[str, str]:
    """Where the name of each node is written: beside the ends of a row, where no line goes; above those between."""
    rows = [[name for name in places if places[name][1] == y] for y in {y for _, y in places.values()}]
    left = {row[0] for row in rows if len(row) > 1 or places[row[0]][0] < 0.5}
    right = {row[-1] for row in rows} - left
    return {
        name: "middle left" if name in left else "middle right" if name in right else "top center" for name in places
    }


def _depth(name: str) -> float:
    """The block in a name, and how far down the block the part is. The embedding and other biases come first."""
    kind, _, place = name.partition(" ")
    block = place.partition(".")[0]
    return int(block) + _IN_BLOCK.get(kind, 0.6) if block.isdecimal() else -1.0
