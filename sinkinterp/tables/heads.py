"""Tables with a row per layer and head."""

from collections.abc import Callable

from ..measurement.report import Report
from ..metrics.bootstrap import cells, estimate
from ..metrics.qk import is_broadcast, is_nop, score_gap_shares
from ..table import Cell, Table
from .note import note


def heads(report: Report, epsilon: float = 0.3) -> Table:
    """Importance of the first position per layer and head, with its kv head's value- and key-norm ratio."""
    values, keys = report.value_ratio(), report.key_ratio()
    group = report.importance.shape[2] // values.shape[2]

    def row(i: int, head: int) -> dict[str, Cell]:
        alpha = report.alpha()[:, i, head]
        return {
            "layer": report.attention_layers[i],
            "head": head,
            **cells("alpha_1", estimate(alpha)),
            "null": report.null_alpha()[:, i, head].mean().item(),
            "sink rate": (alpha > epsilon).float().mean().item(),
            "value ratio": values[:, i, head // group].mean().item(),
            "key ratio": keys[:, i, head // group].mean().item(),
        }

    return Table("Importance of the first position per head", note(report, epsilon), per_head(report, row))


def geometry(report: Report, epsilon: float = 0.3) -> Table:
    """Why queries look at the first key, per head: its angle or its length (Gu et al. 2025, Figures 2 and 15-18).

    The score gap of the first key over the others is split into what the cosine and what the norms explain. Raises
    InputError where geometry was not measured.
    """
    angles = report.extra("qk_angles")
    shares = score_gap_shares(angles, report.extra("qk_norm_products"))

    def row(i: int, head: int) -> dict[str, Cell]:
        return {
            "layer": report.attention_layers[i],
            "head": head,
            "alpha_1": report.alpha()[:, i, head].mean().item(),
            **cells("cos, first key", estimate(angles[:, i, head, 0])),
            **cells("cos, others", estimate(angles[:, i, head, 1])),
            **cells("score gap", estimate(shares[:, i, head, 0])),
            "by angle": shares[:, i, head, 1].nanmean().item(),
            "by norms": shares[:, i, head, 2].nanmean().item(),
        }

    text = f"{note(report, epsilon)}; gap: mean score of the first key less that of the others, by angle + by norms"
    return Table("Angle or length? Queries and the first key per head", text, per_head(report, row))


def writes(report: Report, epsilon: float = 0.3) -> Table:
    """What heads write: a sink whose value is short writes next to nothing (no-op), a long one broadcasts it.

    Stable ranks are of the keys, and of the update that the head writes; 1 is one direction for all positions.
    Source: Fesser, arXiv 2606.08105. Raises InputError where geometry was not measured.
    """
    keys, updates, ratio = report.extra("key_rank"), report.extra("update_rank"), report.value_ratio()
    group = report.importance.shape[2] // ratio.shape[2]

    def row(i: int, head: int) -> dict[str, Cell]:
        alpha, value = report.alpha()[:, i, head].mean(), ratio[:, i, head // group]
        kind = "no-op" if is_nop(value.mean()) else "broadcast" if is_broadcast(value.mean()) else "between"
        return {
            "layer": report.attention_layers[i],
            "head": head,
            "alpha_1": alpha.item(),
            **cells("value ratio", estimate(value)),
            **cells("stable rank of keys", estimate(keys[:, i, head // group])),
            **cells("stable rank of update", estimate(updates[:, i, head])),
            "kind of sink": kind if alpha > epsilon else "none",
        }

    text = f"{note(report, epsilon)}; no-op: value ratio below 0.2; broadcast: from 0.8 to 1.25"
    return Table("What do heads write?", text, per_head(report, row))


def per_head(report: Report, row: Callable[[int, int], dict[str, Cell]]) -> tuple[dict[str, Cell], ...]:
    """A row per layer and query head, told their places in the report."""
    n_layers, n_heads = report.importance.shape[1:3]
    return tuple(row(i, head) for i in range(n_layers) for head in range(n_heads))


def strongest(table: Table, most: int = 12) -> Table:
    """The `most` rows with the largest alpha_1, largest first."""
    rows = sorted(table.rows, key=lambda row: -float(row["alpha_1"] or 0))[:most]
    return Table(
        f"{table.title}: the {len(rows)} of {len(table.rows)} with the largest alpha_1", table.note, tuple(rows)
    )
