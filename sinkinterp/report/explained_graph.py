"""A small graph of parts and the heads that they lead to: layers downwards, lines as wide as their shares."""

import re
from collections.abc import Sequence

import plotly.graph_objects as go

from ..plots.theme import COLOURS, GREY, escaped, themed

WIDEST = 12  # points, of a line whose share is 1


def graph(edges: Sequence[tuple[str, str, float]], title: str, caption: str) -> go.Figure:
    """The graph of edges (from, to, share). Names end in their layer, as in "MLP 1" or "head 3.7"."""
    names = list(dict.fromkeys(name for edge in edges for name in edge[:2]))
    targets = {edge[1] for edge in edges}
    places = _places(names, targets, edges)
    figure = go.Figure()
    for start, end, share in edges:
        (x0, y0), (x1, y1) = places[start], places[end]
        figure.add_scatter(
            x=[x0, x1],
            y=[y0, y1],
            mode="lines",
            line={"width": max(1, WIDEST * min(abs(share), 1)), "color": COLOURS[0] if share > 0 else COLOURS[1]},
            opacity=0.55,
            hoverinfo="text",
            text=f"{escaped(start)} → {escaped(end)}: {share:.0%}",
            showlegend=False,
        )
        figure.add_annotation(
            x=x0 + 0.4 * (x1 - x0), y=y0 + 0.4 * (y1 - y0), text=f"{share:.0%}", showarrow=False, font={"size": 11}
        )
    figure.add_scatter(
        x=[places[name][0] for name in names],
        y=[places[name][1] for name in names],
        mode="markers+text",
        text=[escaped(name) for name in names],
        textposition=["top center" if name not in targets else "bottom center" for name in names],
        marker={"size": 14, "color": [COLOURS[2] if name in targets else GREY for name in names]},
        hoverinfo="text",
        showlegend=False,
        cliponaxis=False,
    )
    depth = len({y for _, y in places.values()})
    figure.update_xaxes(visible=False, range=[-0.1, 1.1])
    figure.update_yaxes(visible=False, autorange="reversed")
    return themed(figure, title, 220 + 90 * depth, caption)


def _places(
    names: Sequence[str], targets: set[str], edges: Sequence[tuple[str, str, float]]
) -> dict[str, tuple[float, float]]:
    """Where each node stands: as deep as its layer, and beside those of its depth."""
    depth = {name: _layer(name) for name in names}
    for start, end, _ in edges:  # a neuron stands above the layer that it belongs to
        if start.startswith("neuron"):
            depth[start] = depth[end] - 0.5
    levels = sorted(set(depth.values()))
    rows = {level: [name for name in names if depth[name] == level] for level in levels}
    return {
        name: ((i + 0.5) / len(row), float(levels.index(level)))
        for level, row in rows.items()
        for i, name in enumerate(row)
    }


def _layer(name: str) -> float:
    """Twice the layer; a feed-forward layer comes after the heads of its block."""
    numbers = re.findall(r"\d+", name)
    return -1.0 if not numbers else 2 * float(numbers[0]) + (1 if name.startswith("MLP") else 0)
