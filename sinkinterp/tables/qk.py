"""Angle or length? The first key beside the others, over heads and over pairs (Gu et al. 2025, Figures 2 and 15-18)."""

from dataclasses import dataclass

from ..errors import InputError
from ..measurement.report import Report
from ..metrics.metric import Metric
from ..metrics.qk import QK_ANGLES, QK_NORM_PRODUCTS
from ..metrics.qk_pairs import COSINE_COUNTS, COSINES, NORM_PRODUCT_COUNTS, NORMS
from ..plots import qk as figures
from ..plots.columns import ALPHA_1, COSINE, NORM_PRODUCT, QUANTITY
from ..plots.qk import BIN_END, BIN_START, FIRST_KEY, OTHER_KEYS, mean_of
from ..table import Cell, Table
from .exhibits import Exhibit
from .heads import rows_by_head, strongest_head
from .note import protocol_note

SCALED = "norm product: |q| |k| times the scale of the scores, the score at a cosine of 1; bias and softcap left out"


@dataclass(frozen=True)
class PairQuantity:
    """A number of a query and a key: the metrics with its means and with its counts in bins, and the bins' edges."""

    name: str
    means: Metric
    counts: Metric
    edges: tuple[float, ...]


QUANTITIES = (
    PairQuantity(COSINE, QK_ANGLES, COSINE_COUNTS, COSINES),
    PairQuantity(NORM_PRODUCT, QK_NORM_PRODUCTS, NORM_PRODUCT_COUNTS, NORMS),
)


def qk_means_by_head(report: Report, epsilon: float = 0.3) -> Table:
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
    return Table("The first key beside the others", note, rows_by_head(report, row))


def qk_distributions(report: Report, layer: int, head: int, epsilon: float = 0.3) -> Table:
    """How one head's cosines and norm products are spread over pairs of a query and a key it sees, by bins.

    Shares are of the pairs with the first key, and of those with others. Raises InputError where the instrument
    DISTRIBUTIONS was not measured, and for a head that is not there.
    """
    if layer not in report.attention_layers or not 0 <= head < report.importance.shape[2]:
        raise InputError(f"there is no head {head} of layer {layer}; layers that attend: {report.attention_layers}")
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
    return Table(title, f"{protocol_note(report, epsilon)}; {SCALED}", tuple(rows))


EXHIBITS = (
    Exhibit(
        QK_ANGLES,
        lambda report, epsilon, text: qk_means_by_head(report, epsilon),
        on_page=True,
        heading="Angle or length?",
        figure=figures.by_layer,
    ),
    Exhibit(
        COSINE_COUNTS,
        lambda report, epsilon, text: qk_distributions(report, *strongest_head(report), epsilon),
        on_page=True,
        heading="Pairs of queries and keys in the head that looks at the first token most",
        figure=figures.distributions,
    ),
)
