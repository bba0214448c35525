"""Tables with a row per layer and head."""

from collections.abc import Callable

import torch

from ..measurement.report import Report
from ..metrics.bootstrap import estimate, estimate_cells
from ..metrics.qk import QK_ANGLES, QK_NORM_PRODUCTS, score_gap
from ..metrics.sink import check_epsilon
from ..metrics.writes import KEY_RANK, UPDATE_RANK, is_broadcast, is_nop
from ..plots.columns import ALPHA_1, HEAD, KEY_RATIO, LAYER, NULL, SINK_RATE, VALUE_RATIO
from ..table import Cell, Table
from .exhibits import Exhibit
from .note import protocol_note


def sinks_by_head(report: Report, epsilon: float = 0.3) -> Table:
    """Importance of the first position per layer and head, with its kv head's value- and key-norm ratio."""
    check_epsilon(epsilon)
    values, keys = report.value_ratio(), report.key_ratio()
    group = _group(report)

    def row(i: int, head: int) -> dict[str, Cell]:
        alpha = report.alpha()[:, i, head]
        return {
            **estimate_cells(ALPHA_1, estimate(alpha)),
            NULL: report.null_alpha()[:, i, head].mean().item(),
            SINK_RATE: (alpha > epsilon).float().mean().item(),
            VALUE_RATIO: values[:, i, head // group].mean().item(),
            KEY_RATIO: keys[:, i, head // group].mean().item(),
        }

    title = "Importance of the first position per head"
    return Table(title, protocol_note(report, epsilon), rows_by_head(report, row))


def score_gaps_by_head(report: Report, epsilon: float = 0.3) -> Table:
    """Why queries look at the first key, per head: its angle or its length (Gu et al. 2025, Figures 2 and 15-18).

    The score gap of the first key over the others is split into what the cosine and what the norms explain. Raises
    InputError where the instrument GEOMETRY was not measured.
    """
    angles = report.extra(QK_ANGLES)
    gap = score_gap(angles, report.extra(QK_NORM_PRODUCTS))

    def row(i: int, head: int) -> dict[str, Cell]:
        return {
            ALPHA_1: report.alpha()[:, i, head].mean().item(),
            **estimate_cells("cos, first key", estimate(angles[:, i, head, 0])),
            **estimate_cells("cos, others", estimate(angles[:, i, head, 1])),
            **estimate_cells("score gap", estimate(gap.total[:, i, head])),
            "by angle": gap.by_angle[:, i, head].nanmean().item(),
            "by norms": gap.by_norms[:, i, head].nanmean().item(),
        }

    explained = "gap: mean score of the first key less that of the others, by angle + by norms"
    note = f"{protocol_note(report, epsilon)}; {explained}"
    return Table("Angle or length? Queries and the first key per head", note, rows_by_head(report, row))


def writes_by_head(report: Report, epsilon: float = 0.3) -> Table:
    """What heads write: a sink with a short value writes next to nothing (no-op), one with a long value broadcasts it.

    Stable ranks are of the keys, and of the update that the head writes; 1 is one direction for all positions.
    Source: Fesser, arXiv 2606.08105. Raises InputError where the instrument GEOMETRY was not measured.
    """
    keys, updates, ratios = report.extra(KEY_RANK), report.extra(UPDATE_RANK), report.value_ratio()
    group = _group(report)

    def row(i: int, head: int) -> dict[str, Cell]:
        alpha, ratio = report.alpha()[:, i, head].mean(), ratios[:, i, head // group]
        return {
            ALPHA_1: alpha.item(),
            **estimate_cells(VALUE_RATIO, estimate(ratio)),
            **estimate_cells("stable rank of keys", estimate(keys[:, i, head // group])),
            **estimate_cells("stable rank of update", estimate(updates[:, i, head])),
            "kind of sink": _kind(ratio.mean()) if alpha > epsilon else "none",
        }

    note = f"{protocol_note(report, epsilon)}; no-op: value ratio below 0.2; broadcast: from 0.8 to 1.25"
    return Table("What do heads write?", note, rows_by_head(report, row))


def rows_by_head(report: Report, row: Callable[[int, int], dict[str, Cell]]) -> tuple[dict[str, Cell], ...]:
    """A row per layer and query head; `row` gets the index of the layer among those that attend, and the head."""
    n_heads = report.importance.shape[2]
    return tuple(
        {LAYER: layer, HEAD: head, **row(i, head)}
        for i, layer in enumerate(report.attention_layers)
        for head in range(n_heads)
    )


def top_heads(table: Table, most: int = 12) -> Table:
    """The `most` rows with the largest alpha_1, largest first."""
    rows = sorted(table.rows, key=lambda row: -float(row[ALPHA_1] or 0))[:most]
    title = f"{table.title}: the {len(rows)} of {len(table.rows)} with the largest alpha_1"
    return Table(title, table.note, tuple(rows))


def strongest_head(report: Report) -> tuple[int, int]:
    """Layer and head with the largest mean importance of the first position."""
    alpha = report.alpha().nanmean(0)
    i, head = divmod(int(alpha.argmax()), alpha.shape[1])
    return report.attention_layers[i], head


def _group(report: Report) -> int:
    """How many query heads share a kv head."""
    return report.importance.shape[2] // report.value_norms.shape[2]


def _kind(value_ratio: torch.Tensor) -> str:
    return "no-op" if is_nop(value_ratio) else "broadcast" if is_broadcast(value_ratio) else "between"


EXHIBITS = (
    Exhibit(
        QK_ANGLES,
        lambda report, epsilon, text: score_gaps_by_head(report, epsilon),
        in_terminal=top_heads,
        in_json=True,
    ),
    Exhibit(
        UPDATE_RANK,
        lambda report, epsilon, text: writes_by_head(report, epsilon),
        in_terminal=top_heads,
        in_json=True,
    ),
)
