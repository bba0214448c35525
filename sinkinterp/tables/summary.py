"""Is there a sink? One model, two models, or one model on many kinds of text."""

from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor

from ..measurement.report import Report
from ..metrics import sink
from ..metrics.bootstrap import BY_SEQUENCE, cells, difference, estimate
from ..table import Cell, Table
from .note import note

Nulls = tuple[float | None, float | None]  # under uniform attention; by bias, mask and sink logits alone


def signature(report: Report, epsilon: float = 0.3) -> Table:
    """What shows a sink: sink rate, importance, and the first token's norms, each beside its null.

    A second null, of position bias, mask and learned sink logits alone, has its column where it differs.
    """
    nulls: dict[str, Nulls] = {
        _rate(epsilon): (report.null_sink_rate(0, epsilon), report.bias_sink_rate(0, epsilon)),
        "alpha_1, mean over heads": (report.null_alpha().nanmean().item(), report.bias_alpha().nanmean().item()),
        "alpha_1 of raw weights": (None, None),
        "off-sequence mass, mean over heads": (None, None),
        "loss, nats per token": (None, None),
    }
    if report.slot_null is not None:
        rate = sink.sink_rate(report.slot_null, epsilon).mean().item()
        nulls[_slot_rate(epsilon)] = (rate, None)
        nulls["alpha_*, mean over heads"] = (report.slot_null.mean().item(), None)
    shown = _signature(report, epsilon)
    if report.raw_importance.equal(report.importance):
        del shown["alpha_1 of raw weights"]
    if not report.off_sequence.abs().max() > 1e-5:
        del shown["off-sequence mass, mean over heads"]
    biased = not report.bias_null.equal(report.null)

    def row(name: str, values: Float[Tensor, " sequence"]) -> dict[str, Cell]:
        null, bias_null = nulls.get(name, (1.0, None))
        return {"quantity": name, **cells("value", estimate(values)), "null": null} | (
            {"null of bias alone": bias_null} if biased else {}
        )

    rows = tuple(row(name, values) for name, values in shown.items())
    return Table("Is there a sink on the first token?", note(report, epsilon), rows)


def compare(before: Report, after: Report, epsilon: float = 0.3) -> Table:
    """The signature of two reports and what changed: sequence by sequence where both saw the same tokens."""
    old, new = _signature(before, epsilon), _signature(after, epsilon)
    paired = before.protocol.source_sha256 == after.protocol.source_sha256
    rows = tuple(
        {"quantity": name, **cells("before", estimate(old[name])), **cells("after", estimate(new[name]))}
        | cells("change", difference(old[name], new[name], paired))
        for name in old
        if name in new
    )
    pairing = "the same sequences, change by sequence" if paired else "different sequences, change of means"
    text = f"before: {note(before, epsilon)}; after: {note(after, epsilon)}; {pairing}"
    return Table("What changed?", text, rows)


def domains(reports: Mapping[str, Report], epsilon: float = 0.3) -> Table:
    """The sink on many kinds of text (Gu et al. 2025, Figure 9): a row per domain, each beside its null."""

    def row(name: str, report: Report) -> dict[str, Cell]:
        return {
            "domain": name,
            **cells("Sink_1", report.sink(0, epsilon)),
            "null rate": report.null_sink_rate(0, epsilon),
            **cells("alpha_1", estimate(report.alpha().mean((1, 2)))),
            **cells("value ratio", estimate(report.value_ratio().mean((1, 2)))),
            "n": report.protocol.sequences,
        }

    rows = tuple(row(name, report) for name, report in reports.items())
    one = next(iter(reports.values())).protocol
    text = f"{one.model}: T={one.length}, BOS {one.bos}, {one.dtype}, epsilon={epsilon}; {BY_SEQUENCE}"
    return Table("Does the sink depend on the text?", text, rows)


def _rate(epsilon: float) -> str:
    return f"Sink_1 at epsilon {epsilon} (position 0)"


def _slot_rate(epsilon: float) -> str:
    return f"Sink_* at epsilon {epsilon} (slot)"


def _signature(report: Report, epsilon: float) -> dict[str, Float[Tensor, " sequence"]]:
    """What `signature` shows, a number per sequence."""
    blocks = report.residual_ratio()
    slots = {} if report.slot_importance is None else {
        _slot_rate(epsilon): sink.sink_rate(report.slot_importance, epsilon),
        "alpha_*, mean over heads": report.slot_importance.mean((1, 2)),
    }  # fmt: skip
    loss = {"loss, nats per token": report.extra("loss").nanmean(1)} if report.has("loss") else {}
    return {
        _rate(epsilon): sink.sink_rate(report.alpha(), epsilon),
        "alpha_1, mean over heads": report.alpha().mean((1, 2)),
        "alpha_1 of raw weights": report.raw_alpha().mean((1, 2)),
        **slots,
        "off-sequence mass, mean over heads": report.off_sequence.mean((1, 2)),
        "value-norm ratio, mean over kv heads": report.value_ratio().mean((1, 2)),
        "key-norm ratio, mean over kv heads": report.key_ratio().mean((1, 2)),
        "residual-norm ratio, largest over blocks": blocks[:, int(blocks.mean(0).argmax())],
        **loss,
    }
