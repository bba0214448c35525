"""One look for every figure: colour-blind safe, readable in print."""

from html import escape

import plotly.graph_objects as go

# Okabe and Ito's palette, in an order that keeps neighbours apart
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
GREY = "#767676"
SEQUENTIAL = "Cividis"
FONT = {"family": "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif", "size": 13, "color": "#1a1a1a"}


def themed(figure: go.Figure, title: str, height: int = 420) -> go.Figure:
    """The figure in the house style."""
    figure.update_layout(
        template="plotly_white", title={"text": label(title), "x": 0, "xanchor": "left"}, font=FONT, height=height,
        colorway=COLOURS, margin={"l": 70, "r": 30, "t": 100, "b": 60}, hoverlabel={"align": "left"},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.08, "x": 0},
    )  # fmt: skip
    return figure


def label(word: object) -> str:
    """A word from data for a name or a title: Plotly reads a few tags in those, so they are escaped."""
    return escape(str(word), quote=False)


def colour(index: int) -> str:
    """The palette, round and round."""
    return COLOURS[index % len(COLOURS)]
