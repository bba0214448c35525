"""Angle or length? The first key beside the others, over heads and over pairs (Gu et al. 2025, Figures 2 and 15-18)."""

from ..errors import InputError
from ..measurement.report import Report
from ..metrics.angles import COSINES, NORMS
from ..table import Table
from .heads import per_head
from .note import note

PAIRS = {"cosine": ("qk_angles", "angle_counts", COSINES), "norm product": ("qk_norm_products", "norm_counts", NORMS)}


def contrasts(report: Report, epsilon: float = 0.3) -> Table:
    """Per head, mean cosine and mean norm product (times the scale) of queries with the first key, and with others.

    Raises InputError where geometry was not measured.
    """
    means = {name: report.extra(extra).nanmean(0) for name, (extra, _, _) in PAIRS.items()}
    alpha = report.alpha().nanmean(0)
    table = per_head(
        report,
        lambda i, head: {
            "layer": report.attention_layers[i],
            "head": head,
            "alpha_1": alpha[i, head].item(),
            **{
                f"{name}, {which}": mean[i, head, j].item()
                for name, mean in means.items()
                for j, which in enumerate(("first key", "others"))
            },
        },
    )
    return Table("The first key beside the others", f"{note(report, epsilon)}; {SCALED}", table)


def distributions(report: Report, layer: int, head: int, epsilon: float = 0.3) -> Table:
    """How one head's cosines and norm products are spread over pairs of a query and a key it sees, by bins.

    Shares are of the pairs with the first key, and of those with others. Raises InputError where the instrument
    DISTRIBUTIONS was not taken along, and for a head that is not there.
    """
    if layer not in report.attention_layers or not 0 <= head < report.importance.shape[2]:
        raise InputError(f"there is no head {head} of layer {layer}; layers that attend: {report.attention_layers}")
    place = report.attention_layers.index(layer)
    rows = []
    for name, (_, extra, edges) in PAIRS.items():
        counts = report.extra(extra)[:, place, head].sum(0)
        first, others = (counts / counts.sum(-1, keepdim=True)).tolist()
        bins = zip(edges[:-1], edges[1:], first, others, strict=True)
        rows += [{"quantity": name, "from": a, "to": b, "first key": x, "others": y} for a, b, x, y in bins]
    title = f"Pairs of queries and keys in layer {layer}, head {head}"
    return Table(title, f"{note(report, epsilon)}; {SCALED}", tuple(rows))


SCALED = "norm product: |q| |k| times the scale of the scores, the score at a cosine of 1; bias and softcap left out"
