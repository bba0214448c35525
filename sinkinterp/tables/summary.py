"""Is there a sink? One model, two models, or one model on many kinds of text."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..measurement.report import Report
from ..metrics.bootstrap import BY_SEQUENCE, difference, estimate, estimate_cells
from ..metrics.loss import NEXT_TOKEN_LOSS
from ..metrics.shapes import PerSequence
from ..metrics.sink import sink_rate
from ..plots.columns import ALPHA_1, NULL, QUANTITY, SINK_1, VALUE_RATIO
from ..table import Cell, Table
from .note import protocol_note


@dataclass(frozen=True)
class Quantity:
    """A number per sequence, and its nulls: under uniform attention; by bias, mask and sink logits alone.

    is_telling: whether it says what no other row says.
    """

    name: str
    values: PerSequence
    null: float | None = None
    bias_null: float | None = None
    is_telling: bool = True


def sink_summary(report: Report, epsilon: float = 0.3) -> Table:
    """What shows a sink: sink rate, importance, and the first token's norms, each beside its null.

    A second null, of position bias, mask and learned sink logits alone, has its column where it differs.
    """
    is_biased = not report.bias_null.equal(report.null)

    def row(quantity: Quantity) -> dict[str, Cell]:
        value = estimate_cells("value", estimate(quantity.values))
        bias_null = {"null of bias alone": quantity.bias_null} if is_biased else {}
        return {QUANTITY: quantity.name, **value, NULL: quantity.null, **bias_null}

    rows = tuple(row(quantity) for quantity in _quantities(report, epsilon) if quantity.is_telling)
    return Table("Is there a sink on the first token?", protocol_note(report, epsilon), rows)


def compare(before: Report, after: Report, epsilon: float = 0.3) -> Table:
    """The summary of two reports and what changed: sequence by sequence where both saw the same tokens."""
    old, new = ({q.name: q.values for q in _quantities(report, epsilon)} for report in (before, after))
    paired = before.protocol.source_sha256 == after.protocol.source_sha256
    rows = tuple(
        {
            QUANTITY: name,
            **estimate_cells("before", estimate(old[name])),
            **estimate_cells("after", estimate(new[name])),
            **estimate_cells("change", difference(old[name], new[name], paired)),
        }
        for name in old
        if name in new
    )
    pairing = "the same sequences, change by sequence" if paired else "different sequences, change of means"
    note = f"before: {protocol_note(before, epsilon)}; after: {protocol_note(after, epsilon)}; {pairing}"
    return Table("What changed?", note, rows)


def sinks_by_domain(reports: Mapping[str, Report], epsilon: float = 0.3) -> Table:
    """The sink on many kinds of text (Gu et al. 2025, Figure 9): a row per domain, each beside its null."""

    def row(name: str, report: Report) -> dict[str, Cell]:
        return {
            "domain": name,
            **estimate_cells(SINK_1, report.sink(0, epsilon)),
            "null rate": report.null_sink_rate(0, epsilon),
            **estimate_cells(ALPHA_1, estimate(report.alpha().mean((1, 2)))),
            **estimate_cells(VALUE_RATIO, estimate(report.value_ratio().mean((1, 2)))),
            "n": report.protocol.sequences,
        }

    rows = tuple(row(name, report) for name, report in reports.items())
    protocol = next(iter(reports.values())).protocol
    measured = f"{protocol.model}: T={protocol.length}, BOS {protocol.bos}, {protocol.dtype}"
    return Table("Does the sink depend on the text?", f"{measured}, epsilon={epsilon}; {BY_SEQUENCE}", rows)


def _quantities(report: Report, epsilon: float) -> list[Quantity]:
    return [
        *_of_first_position(report, epsilon),
        *_of_slot(report, epsilon),
        Quantity(
            "off-sequence mass, mean over heads",
            report.off_sequence.mean((1, 2)),
            is_telling=bool(report.off_sequence.abs().max() > 1e-5),
        ),
        *_of_norms(report),
        *_of_loss(report),
    ]


def _of_first_position(report: Report, epsilon: float) -> list[Quantity]:
    return [
        Quantity(
            f"Sink_1 at epsilon {epsilon} (position 0)",
            sink_rate(report.alpha(), epsilon),
            report.null_sink_rate(0, epsilon),
            report.bias_sink_rate(0, epsilon),
        ),
        Quantity(
            "alpha_1, mean over heads",
            report.alpha().mean((1, 2)),
            report.null_alpha().nanmean().item(),
            report.bias_alpha().nanmean().item(),
        ),
        Quantity(
            "alpha_1 of raw weights",
            report.raw_alpha().mean((1, 2)),
            is_telling=not report.raw_importance.equal(report.importance),
        ),
    ]


def _of_slot(report: Report, epsilon: float) -> list[Quantity]:
    if report.slot_importance is None or report.slot_null is None:
        return []
    null_rate = sink_rate(report.slot_null, epsilon).mean().item()
    rates = sink_rate(report.slot_importance, epsilon)
    alpha, null = report.slot_importance.mean((1, 2)), report.slot_null.mean().item()
    return [
        Quantity(f"Sink_* at epsilon {epsilon} (slot)", rates, null_rate),
        Quantity("alpha_*, mean over heads", alpha, null),
    ]


def _of_norms(report: Report) -> list[Quantity]:
    by_block = report.residual_ratio()
    largest = by_block[:, int(by_block.mean(0).argmax())]
    return [
        Quantity("value-norm ratio, mean over kv heads", report.value_ratio().mean((1, 2)), null=1.0),
        Quantity("key-norm ratio, mean over kv heads", report.key_ratio().mean((1, 2)), null=1.0),
        Quantity("residual-norm ratio, largest over blocks", largest, null=1.0),
    ]


def _of_loss(report: Report) -> list[Quantity]:
    if not report.has(NEXT_TOKEN_LOSS):
        return []
    return [Quantity("loss, nats per token", report.extra(NEXT_TOKEN_LOSS).nanmean(1))]
