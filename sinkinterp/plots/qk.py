"""Angle or length: queries and the first key beside the others (Gu et al. 2025, Figures 2 bottom and 15 to 18)."""

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots

from ..table import Table
from .columns import COSINE, HEAD, LAYER, NORM_PRODUCT, QUANTITY
from .theme import DIVERGING, MAGNITUDE, colour, escaped, faded, themed
from .traces import positive_axis, unique_values

FIRST_KEY, OTHER_KEYS = "first key", "others"
KEYS = (FIRST_KEY, OTHER_KEYS)
BIN_START, BIN_END = "from", "to"
UNITS = {COSINE: "cosine of query and key", NORM_PRODUCT: "|q| |k| x scale (units of the score)"}


def mean_of(quantity: str, key: str) -> str:
    """The column with a quantity's mean over queries, for one of `KEYS`."""
    return f"{quantity}, {key}"


def by_layer(table: Table) -> go.Figure:
    """Mean cosine and norm product with the first key and with others, a point per head; `tables.qk_means_by_head`."""
    figure = _two_panels()
    places = zip(table.column(LAYER), table.column(HEAD), strict=True)
    heads = [f"layer {layer}, head {head}" for layer, head in places]
    for i, key in enumerate(KEYS):
        for j, quantity in enumerate(UNITS):
            figure.add_box(
                x=table.column(LAYER),
                y=table.numbers(mean_of(quantity, key)),
                name=key,
                legendgroup=key,
                boxpoints="all",
                jitter=0.4,
                pointpos=0,
                fillcolor=faded(colour(i)),
                line={"color": colour(i), "width": 1},
                marker={"color": colour(i), "size": 6, "symbol": ("circle", "square")[i]},
                text=heads,
                hovertemplate="%{text}: %{y:.3g}<extra></extra>",
                showlegend=j == 0,
                row=1,
                col=j + 1,
            )
    figure.update_xaxes(title="layer", type="category")
    products = [value for key in KEYS for value in table.numbers(mean_of(NORM_PRODUCT, key))]
    figure.update_yaxes(title=UNITS[COSINE], range=[-1.05, 1.05], zeroline=True, row=1, col=1)
    figure.update_yaxes(title=UNITS[NORM_PRODUCT], **positive_axis(products), row=1, col=2)
    figure.update_layout(boxmode="group")
    caption = (
        "A point per head: mean over queries of the cosine, and of the product of norms, with the first key and with "
        "the other keys. Boxes: quartiles over heads. A sink by angle parts the first panel, one by length the second."
    )
    return themed(figure, table.title, 460, f"{caption} {table.note}")


def distributions(table: Table) -> go.Figure:
    """One head's pairs by cosine and by norm product, with the first key and with others; `tables.qk_distributions`."""
    figure = _two_panels()
    for j, quantity in enumerate(unique_values(table, QUANTITY)):
        rows = table.where(**{QUANTITY: quantity})
        edges = [*rows.numbers(BIN_START), rows.numbers(BIN_END)[-1]]
        for i, key in enumerate(KEYS):
            shares = rows.numbers(key)
            figure.add_scatter(
                x=edges,
                y=[*shares, shares[-1]],
                name=key,
                mode="lines",
                fill="tozeroy",
                fillcolor=faded(colour(i)),
                line={"color": colour(i), "shape": "hv", "dash": ("solid", "dash")[i]},
                legendgroup=key,
                showlegend=j == 0,
                row=1,
                col=j + 1,
            )
        figure.update_xaxes(title=UNITS[str(quantity)], row=1, col=j + 1)
    ends = _filled_bins(table.where(**{QUANTITY: NORM_PRODUCT}))
    figure.update_xaxes(type="log", dtick="D2", range=np.log10(ends).tolist(), row=1, col=2)
    figure.update_yaxes(title="share of pairs", tickformat=".0%", rangemode="tozero", row=1, col=1)
    figure.update_yaxes(tickformat=".0%", rangemode="tozero", row=1, col=2)
    caption = "Pairs of a query and a key that it sees, by bins: pairs with the first key, and pairs with the others."
    return themed(figure, table.title, caption=f"{caption} {table.note}")


def maps(values: Mapping[str, Float[np.ndarray, "query key"]], title: str, note: str) -> go.Figure:
    """Maps of one head side by side, each with its own scale; from `qk_maps`. Unseen pairs are left blank."""
    titles = [UNITS.get(name, escaped(name)) for name in values]
    figure = make_subplots(1, len(values), subplot_titles=titles, horizontal_spacing=0.06)
    for i, (name, z) in enumerate(values.items()):
        place, axis = {"row": 1, "col": i + 1}, "" if i == 0 else i + 1
        left, right = figure.layout[f"xaxis{axis}"].domain
        colour_bar = {"x": (left + right) / 2, "len": (right - left) * 0.9, "y": -0.16, "yanchor": "top"}
        figure.add_heatmap(
            z=z,
            hovertemplate="query %{y}, key %{x}: %{z:.3g}<extra></extra>",
            colorbar={"orientation": "h", "thickness": 12, **colour_bar},
            **_scale(name, z),
            **place,
        )
        figure.update_xaxes(title="key position", showgrid=False, zeroline=False, constrain="domain", **place)
        figure.update_yaxes(autorange="reversed", scaleanchor=f"x{axis}", showgrid=False, **place)
        figure.update_yaxes(constrain="domain", zeroline=False, **place)
    figure.update_yaxes(title="query position", row=1, col=1)
    caption = "Mean over sequences of every query with every key that it sees; positions count from 0."
    themed(figure, title, 520, f"{caption} {note}")
    return figure.update_layout(margin={"b": 130})


def _two_panels() -> go.Figure:
    return make_subplots(1, 2, subplot_titles=list(UNITS.values()), horizontal_spacing=0.12)


def _filled_bins(rows: Table) -> tuple[float, float]:
    """Start and end of the bins that hold any pair; 1 and 10 where none does."""
    columns = [rows.numbers(name) for name in (BIN_START, BIN_END, *KEYS)]
    filled = [(start, end) for start, end, *shares in zip(*columns, strict=True) if any(share > 0 for share in shares)]
    return (filled[0][0], filled[-1][1]) if filled else (1.0, 10.0)


def _scale(name: str, z: Float[np.ndarray, "query key"]) -> dict[str, object]:
    """Cosines on one fixed scale, other values that may be negative around 0, the rest from 0."""
    peak = float(np.nanmax(np.abs(z))) or 1.0
    if name == COSINE:
        return {"colorscale": DIVERGING, "zmin": -1, "zmax": 1}
    if np.nanmin(z) < 0:
        return {"colorscale": DIVERGING, "zmin": -peak, "zmax": peak}
    return {"colorscale": MAGNITUDE, "zmin": 0, "zmax": peak}
