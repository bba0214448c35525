"""From reports to tables: every number with its interval, its null and its protocol."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from .measurement import Report
from .metrics import sink
from .metrics.intervals import Estimate, estimate
from .table import Cell, Table

BY_SEQUENCE = "95% bootstrap interval over sequences"


def note(report: Report, epsilon: float) -> str:
    """The protocol that stands under every table."""
    return f"{report.protocol.model}: {report.protocol.line()}, epsilon={epsilon}; {BY_SEQUENCE}"


def signature(report: Report, epsilon: float = 0.3) -> Table:
    """What shows a sink: sink rate, importance, and the first token's norms, each beside its null."""
    sink.check_epsilon(epsilon)
    rows = [
        _row(f"Sink_1 at epsilon {epsilon} (position 0)", report.sink(0, epsilon), report.null_sink_rate(0, epsilon)),
        _row("alpha_1, mean over heads", _mean(report.alpha()), report.null[..., 0].mean().item()),
    ]
    if not report.raw_importance.equal(report.importance):
        rows.append(_row("alpha_1 of raw weights", _mean(report.raw_importance[..., :1]), None))
    slot = report.slot_rate(epsilon)
    if slot and report.slot_importance is not None and report.slot_null is not None:
        null_rate = sink.sink_rate(report.slot_null, epsilon).mean().item()
        rows.append(_row(f"Sink_* at epsilon {epsilon} (slot)", slot, null_rate))
        rows.append(_row("alpha_*, mean over heads", _mean(report.slot_importance), report.slot_null.mean().item()))
    rows += [
        _row("value-norm ratio, mean over kv heads", _mean(report.value_ratio()), 1.0),
        _row("key-norm ratio, mean over kv heads", _mean(report.key_ratio()), 1.0),
        _row("residual-norm ratio, largest over blocks", _largest(report.residual_ratio()), 1.0),
    ]
    return Table("Is there a sink on the first token?", note(report, epsilon), tuple(rows))


def heads(report: Report, epsilon: float = 0.3) -> Table:
    """Importance of the first position per layer and head, with its kv head's value- and key-norm ratio."""
    values, keys = report.value_ratio(), report.key_ratio()
    group = report.importance.shape[2] // values.shape[2]
    rows = tuple(
        {"layer": layer, "head": head}
        | _cells("alpha_1", estimate(report.alpha()[:, i, head]))
        | {"null": report.null[:, i, head, 0].mean().item()}
        | {"share above epsilon": (report.alpha()[:, i, head] > epsilon).float().mean().item()}
        | {"value ratio": values[:, i, head // group].mean().item()}
        | {"key ratio": keys[:, i, head // group].mean().item()}
        for i, layer in enumerate(report.attention_layers)
        for head in range(report.importance.shape[2])
    )
    return Table("Importance of the first position per head", note(report, epsilon), rows)


def positions(report: Report, epsilon: float = 0.3) -> Table:
    """Sink rate and mean importance of every measured position, beside the null."""
    rows = tuple(
        {"position": p, "paper": f"Sink_{p + 1}"}
        | _cells("sink rate", report.sink(p, epsilon))
        | {"null rate": report.null_sink_rate(p, epsilon)}
        | {"alpha": report.alpha(p).mean().item(), "null alpha": report.null[..., i].mean().item()}
        for i, p in enumerate(report.positions)
    )
    return Table("Sink rate by position", note(report, epsilon), rows)


def residuals(reports: Mapping[str, Report], epsilon: float = 0.3) -> Table:
    """Norm of the first token's residual against the others', per block and model."""
    rows = tuple(
        {
            "model": name,
            "block": block,
            "first token": report.residual_norms[:, block, 0].mean().item(),
            "other tokens": report.residual_norms[:, block, 1:].mean().item(),
        }
        | _cells("ratio", estimate(report.residual_ratio()[:, block]))
        for name, report in reports.items()
        for block in range(report.residual_norms.shape[1])
    )
    notes = next(iter(reports.values()))
    text = f"{notes.protocol.line()}; {BY_SEQUENCE}; block 0 is the embedding, block b the output of layer b - 1"
    return Table("Residual norms by block", text, rows)


def _row(quantity: str, value: Estimate, null: float | None) -> dict[str, Cell]:
    return {"quantity": quantity, **_cells("value", value), "null": null}


def _cells(name: str, value: Estimate) -> dict[str, Cell]:
    return {name: value.mean, f"{name} low": value.low, f"{name} high": value.high}


def _mean(per_sequence: Float[Tensor, "sequence *stack"]) -> Estimate:
    return estimate(per_sequence.flatten(1).mean(1))


def _largest(per_sequence: Float[Tensor, "sequence block"]) -> Estimate:
    return estimate(per_sequence[:, int(torch.argmax(per_sequence.mean(0)))])
