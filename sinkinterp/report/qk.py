"""Angle or length? The first key beside the others, over heads and over pairs (Gu et al. 2025, Figures 2 and 15-18)."""

from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..attention import maps
from ..interventions.selectors import check_heads
from ..metrics.metric import Metric
from ..metrics.qk import COSINE_COUNTS, COSINES, NORM_PRODUCT_COUNTS, NORMS, QK_ANGLES, QK_NORM_PRODUCTS
from ..plots.theme import colour, faded, positive_axis, themed, unique_values
from ..table import ALPHA_1, HEAD, LAYER, QUANTITY, Cell, Table
from .heads import rows_by_head
from .readings import Readings, of_report, protocol_note

COSINE, NORM_PRODUCT = maps.COSINE.name, maps.NORM_PRODUCT.name
SCALED = "norm product: |q| |k| times the scale of the scores, the score at a cosine of 1; bias and softcap left out"
FIRST_KEY, OTHER_KEYS = "first key", "others"
KEYS = (FIRST_KEY, OTHER_KEYS)
BIN_START, BIN_END = "from", "to"
UNITS = {COSINE: maps.COSINE.title, NORM_PRODUCT: f"{maps.NORM_PRODUCT.title} (units of the score)"}


@dataclass(frozen=True)
class PairQuantity:
    """A number that every pair of a query and a key has, such as their cosine.

    means: the metric with its mean over pairs. counts: the metric that counts pairs by bins. edges: of the bins.
    """

    name: str
    means: Metric
    counts: Metric
    edges: tuple[float, ...]


QUANTITIES = (
    PairQuantity(COSINE, QK_ANGLES, COSINE_COUNTS, COSINES),
    PairQuantity(NORM_PRODUCT, QK_NORM_PRODUCTS, NORM_PRODUCT_COUNTS, NORMS),
)


@of_report
def qk_means_by_head(report: Readings, epsilon: float = 0.3) -> Table:
    """Per head, mean cosine and mean norm product (times the scale) of queries with the first key, and with others.

    Raises InputError where the instrument GEOMETRY was not measured.
    """
    means = {quantity.name: report.extra(quantity.means).nanmean(0) for quantity in QUANTITIES}
    alpha = report.alpha().nanmean(0)

    def row(i: int, head: int) -> dict[str, Cell]:
        cells: dict[str, Cell] = {ALPHA_1: alpha[i, head].item()}
        for name, mean in means.items():
            cells[mean_of(name, FIRST_KEY)], cells[mean_of(name, OTHER_KEYS)] = mean[i, head].tolist()
        return cells

    note = f"{protocol_note(report, epsilon)}; {SCALED}"
    return Table("The first key beside the others", note, rows_by_head(report, row), by_layer)


@of_report
def qk_distributions(report: Readings, layer: int, head: int, epsilon: float = 0.3) -> Table:
    """How one head's cosines and norm products are spread over pairs of a query and a key it sees, by bins.

    Shares are of the pairs with the first key, and of those with others. Raises InputError where the instrument
    DISTRIBUTIONS was not measured, and for a head that is not there.
    """
    check_heads([(layer, head)], report.attention_layers, report.importance.shape[2], "head")
    i = report.attention_layers.index(layer)
    rows: list[dict[str, Cell]] = []
    for quantity in QUANTITIES:
        counts = report.extra(quantity.counts)[:, i, head].sum(0)
        first, others = (counts / counts.sum(-1, keepdim=True)).tolist()
        bins = zip(quantity.edges[:-1], quantity.edges[1:], first, others, strict=True)
        for start, end, share_of_first, share_of_others in bins:
            rows.append({QUANTITY: quantity.name, BIN_START: start, BIN_END: end})
            rows[-1] |= {FIRST_KEY: share_of_first, OTHER_KEYS: share_of_others}
    title = f"Pairs of queries and keys in layer {layer}, head {head}"
    return Table(title, f"{protocol_note(report, epsilon)}; {SCALED}", tuple(rows), distributions)


def mean_of(quantity: str, key: str) -> str:
    """The column with a quantity's mean over queries, for one of `KEYS`."""
    return f"{quantity}, {key}"


def by_layer(table: Table) -> go.Figure:
    """Mean cosine and norm product with the first key and with others, a point per head; `qk_means_by_head`."""
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
    """One head's pairs by cosine and by norm product, with the first key and with others; `qk_distributions`."""
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
    is_short = ends[1] < 10 * ends[0]  # else ticks at 2 and 5 overprint each other
    figure.update_xaxes(type="log", dtick="D2" if is_short else 1, range=np.log10(ends).tolist(), row=1, col=2)
    figure.update_yaxes(title="share of pairs", tickformat=".0%", rangemode="tozero", row=1, col=1)
    figure.update_yaxes(tickformat=".0%", rangemode="tozero", row=1, col=2)
    caption = "Pairs of a query and a key that it sees, by bins: pairs with the first key, and pairs with the others."
    return themed(figure, table.title, caption=f"{caption} {table.note}")


def _two_panels() -> go.Figure:
    return make_subplots(1, 2, subplot_titles=list(UNITS.values()), horizontal_spacing=0.12)


def _filled_bins(rows: Table) -> tuple[float, float]:
    """Start and end of the bins that hold any pair; 1 and 10 where none does."""
    columns = [rows.numbers(name) for name in (BIN_START, BIN_END, *KEYS)]
    filled = [(start, end) for start, end, *shares in zip(*columns, strict=True) if any(share > 0 for share in shares)]
    return (filled[0][0], filled[-1][1]) if filled else (1.0, 10.0)
