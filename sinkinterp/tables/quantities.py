"""The numbers that show a sink, each with one value per sequence and its nulls."""

from dataclasses import dataclass

from torch import Tensor

from ..measurement.report import Report
from ..metrics.loss import NEXT_TOKEN_LOSS
from ..metrics.shapes import PerSequence
from ..metrics.sink import sink_rate


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


def quantities(report: Report, epsilon: float) -> list[Quantity]:
    """The numbers that say whether a report shows a sink, in the order in which they are read."""
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


def same_numbers(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one shape hold the same numbers; NaN, where a sequence is too short, equals NaN."""
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


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
            is_telling=not same_numbers(report.raw_importance, report.importance),
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
