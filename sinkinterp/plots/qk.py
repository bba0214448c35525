"""Angle or length: queries and the first key beside the others (Gu et al. 2025, Figures 2 bottom and 15 to 18)."""

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots

from ..table import Table
from .theme import DIVERGING, MAGNITUDE, colour, faded, label, themed
from .traces import distinct, span

KEYS = ("first key", "others")
COSINE, PRODUCT = "cosine", "norm product"
UNITS = {COSINE: "cosine of query and key", PRODUCT: "|q| |k| x scale (units of the score)"}
WIDE = {"horizontal_spacing": 0.12}


def by_layer(table: Table) -> go.Figure:
    """Mean cosine and mean norm product with the first key and with others, a point per head; `tables.contrasts`."""
    figure = make_subplots(1, 2, subplot_titles=list(UNITS.values()), **WIDE)
    names = [
        f"layer {layer}, head {head}" for layer, head in zip(table.column("layer"), table.column("head"), strict=True)
    ]
    for i, key in enumerate(KEYS):
        for column, quantity in enumerate(UNITS):
            figure.add_box(
                x=table.column("layer"), y=table.numbers(f"{quantity}, {key}"), name=key, legendgroup=key,
                boxpoints="all", jitter=0.4, pointpos=0, fillcolor=faded(colour(i)),
                line={"color": colour(i), "width": 1},
                marker={"color": colour(i), "size": 6, "symbol": ("circle", "square")[i]}, text=names,
                hovertemplate="%{text}: %{y:.3g}<extra></extra>", showlegend=column == 0, row=1, col=column + 1,
            )  # fmt: skip
    figure.update_xaxes(title="layer", type="category")
    products = [value for key in KEYS for value in table.numbers(f"{PRODUCT}, {key}")]
    figure.update_yaxes(title=UNITS[COSINE], range=[-1.05, 1.05], zeroline=True, row=1, col=1)
    figure.update_yaxes(title=UNITS[PRODUCT], **span(products), row=1, col=2)
    figure.update_layout(boxmode="group")
    words = (
        "A point per head: mean over queries of the cosine, and of the product of norms, with the first key and with "
        "the other keys. Boxes: quartiles over heads. A sink by angle parts the first panel, one by length the second."
    )
    return themed(figure, table.title, 460, f"{words} {table.note}")


def distributions(table: Table) -> go.Figure:
    """One head's pairs by cosine and by norm product: those with the first key, and the others."""
    figure = make_subplots(1, 2, subplot_titles=list(UNITS.values()), **WIDE)
    for column, quantity in enumerate(distinct(table, "quantity")):
        rows = table.where(quantity=quantity)
        edges = [*rows.numbers("from"), rows.numbers("to")[-1]]
        for i, key in enumerate(KEYS):
            shares = rows.numbers(key)
            figure.add_scatter(
                x=edges, y=[*shares, shares[-1]], name=key, mode="lines", fill="tozeroy", fillcolor=faded(colour(i)),
                line={"color": colour(i), "shape": "hv", "dash": ("solid", "dash")[i]}, legendgroup=key,
                showlegend=column == 0, row=1, col=column + 1,
            )  # fmt: skip
        figure.update_xaxes(title=UNITS[str(quantity)], row=1, col=column + 1)
    filled = [row for row in table.where(quantity=PRODUCT).rows if any(float(row[key] or 0) for key in KEYS)]
    bounds = [float(filled[0]["from"] or 0), float(filled[-1]["to"] or 0)] if filled else [1.0, 10.0]
    figure.update_xaxes(type="log", dtick="D2", range=np.log10(bounds).tolist(), row=1, col=2)
    figure.update_yaxes(title="share of pairs", tickformat=".0%", rangemode="tozero", row=1, col=1)
    figure.update_yaxes(tickformat=".0%", rangemode="tozero", row=1, col=2)
    words = "Pairs of a query and a key that it sees, by bins: pairs with the first key, and pairs with the others."
    return themed(figure, table.title, caption=f"{words} {table.note}")


def maps(values: Mapping[str, Float[np.ndarray, "query key"]], title: str, note: str) -> go.Figure:
    """Maps of one head side by side, each with its own scale; from `maps.qk_maps`. Unseen pairs are left blank."""
    figure = make_subplots(
        1, len(values), subplot_titles=[UNITS.get(name, label(name)) for name in values], horizontal_spacing=0.06
    )
    for i, (name, z) in enumerate(values.items()):
        axis = "" if i == 0 else i + 1
        left, right = figure.layout[f"xaxis{axis}"].domain
        figure.add_heatmap(
            z=z, row=1, col=i + 1, hovertemplate="query %{y}, key %{x}: %{z:.3g}<extra></extra>", **_scale(name, z),
            colorbar={"orientation": "h", "x": (left + right) / 2, "len": (right - left) * 0.9, "y": -0.16,
                      "yanchor": "top", "thickness": 12},
        )  # fmt: skip
        figure.update_xaxes(title="key position", showgrid=False, zeroline=False, constrain="domain", row=1, col=i + 1)
        figure.update_yaxes(autorange="reversed", scaleanchor=f"x{axis}", showgrid=False, row=1, col=i + 1)
        figure.update_yaxes(constrain="domain", zeroline=False, row=1, col=i + 1)
    figure.update_yaxes(title="query position", row=1, col=1)
    words = "Mean over sequences of every query with every key that it sees; positions count from 0."
    themed(figure, title, 520, f"{words} {note}")
    return figure.update_layout(margin={"b": 130})


def _scale(name: str, z: Float[np.ndarray, "query key"]) -> dict[str, object]:
    """Angles on one fixed scale, what may be negative around 0, the rest from 0."""
    peak = float(np.nanmax(np.abs(z))) or 1.0
    if name == COSINE:
        return {"colorscale": DIVERGING, "zmin": -1, "zmax": 1}
    if np.nanmin(z) < 0:
        return {"colorscale": DIVERGING, "zmin": -peak, "zmax": peak}
    return {"colorscale": MAGNITUDE, "zmin": 0, "zmax": peak}
