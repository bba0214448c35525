"""From reports to tables: every number with its interval, its null and its protocol."""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Float
from torch import Tensor

from .metrics import sink
from .metrics.intervals import Estimate, difference, estimate
from .report import Report
from .table import Cell, Table

BY_SEQUENCE = "95% bootstrap interval over sequences"


def note(report: Report, epsilon: float) -> str:
    """The protocol that stands under every table."""
    return f"{report.protocol.model}: {report.protocol.line()}, epsilon={epsilon}; {BY_SEQUENCE}"


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


def _signature(report: Report, epsilon: float) -> dict[str, Float[Tensor, " sequence"]]:
    """What `signature` shows, a number per sequence."""
    blocks = report.residual_ratio()
    slots = {} if report.slot_importance is None else {
        f"Sink_* at epsilon {epsilon} (slot)": sink.sink_rate(report.slot_importance, epsilon),
        "alpha_*, mean over heads": report.slot_importance.mean((1, 2)),
    }  # fmt: skip
    return {
        f"Sink_1 at epsilon {epsilon} (position 0)": sink.sink_rate(report.alpha(), epsilon),
        "alpha_1, mean over heads": report.alpha().mean((1, 2)),
        "alpha_1 of raw weights": report.raw_alpha().mean((1, 2)),
        **slots,
        "value-norm ratio, mean over kv heads": report.value_ratio().mean((1, 2)),
        "key-norm ratio, mean over kv heads": report.key_ratio().mean((1, 2)),
        "residual-norm ratio, largest over blocks": blocks[:, int(blocks.mean(0).argmax())],
    }


def signature(report: Report, epsilon: float = 0.3) -> Table:
    """What shows a sink: sink rate, importance, and the first token's norms, each beside its null."""
    nulls = {
        f"Sink_1 at epsilon {epsilon} (position 0)": report.null_sink_rate(0, epsilon),
        "alpha_1, mean over heads": report.null_alpha().mean().item(),
        "alpha_1 of raw weights": None,
    }
    if report.slot_null is not None:
        nulls[f"Sink_* at epsilon {epsilon} (slot)"] = sink.sink_rate(report.slot_null, epsilon).mean().item()
        nulls["alpha_*, mean over heads"] = report.slot_null.mean().item()
    shown = _signature(report, epsilon)
    if report.raw_importance.equal(report.importance):
        del shown["alpha_1 of raw weights"]
    rows = [_row(name, estimate(values), nulls.get(name, 1.0)) for name, values in shown.items()]
    return Table("Is there a sink on the first token?", note(report, epsilon), tuple(rows))


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

    rows = tuple(row(i, head) for i in range(report.importance.shape[1]) for head in range(report.importance.shape[2]))
    return Table("Importance of the first position per head", note(report, epsilon), rows)


def strongest_heads(report: Report, epsilon: float = 0.3, most: int = 12) -> Table:
    """The `most` rows of `heads` with the largest importance, largest first."""
    table = heads(report, epsilon)
    rows = sorted(table.rows, key=lambda row: -float(row["alpha_1"] or 0))[:most]
    return Table(
        f"The {len(rows)} of {len(table.rows)} heads that look at the first position most", table.note, tuple(rows)
    )


def positions(report: Report, epsilon: float = 0.3) -> Table:
    """Sink rate and mean importance of every measured position, beside the null."""

    def row(position: int) -> dict[str, Cell]:
        return {
            "position": position,
            "paper": f"Sink_{position + 1}",
            **cells("sink rate", report.sink(position, epsilon)),
            "null rate": report.null_sink_rate(position, epsilon),
            "alpha": report.alpha(position).mean().item(),
            "null alpha": report.null_alpha(position).mean().item(),
        }

    rows = tuple(map(row, report.positions))
    return Table("Sink rate by position", note(report, epsilon), rows)


def residuals(reports: Mapping[str, Report]) -> Table:
    """Norm of the first token's residual against the others', per block and model."""
    rows = tuple(
        _residual_row(name, report, block)
        for name, report in reports.items()
        for block in range(report.residual_norms.shape[1])
    )
    notes = next(iter(reports.values()))
    text = f"{notes.protocol.line()}; {BY_SEQUENCE}; block 0 is the embedding, block b the output of layer b - 1"
    return Table("Residual norms by block", text, rows)


def plain(report: Report, epsilon: float = 0.3) -> dict[str, Any]:
    """Everything as JSON: the protocol, the tables, and mean importance `layer head pos`."""
    tables = (signature, heads, positions)
    return {
        "protocol": vars(report.protocol) | {"epsilon": epsilon},
        "tables": [table(report, epsilon).to_dict() for table in tables]
        + [residuals({report.protocol.model: report}).to_dict()],
        "positions": report.positions,
        "attention_layers": report.attention_layers,
        "importance": report.importance.mean(0).tolist(),
        "null": report.null.mean(0).tolist(),
    }


def _residual_row(name: str, report: Report, block: int) -> dict[str, Cell]:
    return {
        "model": name,
        "block": block,
        "first token": report.residual_norms[:, block, 0].mean().item(),
        "other tokens": report.residual_norms[:, block, 1:].mean().item(),
        **cells("ratio", estimate(report.residual_ratio()[:, block])),
    }


def _row(quantity: str, value: Estimate, null: float | None) -> dict[str, Cell]:
    return {"quantity": quantity, **cells("value", value), "null": null}


def cells(name: str, value: Estimate) -> dict[str, Cell]:
    """An estimate as three cells: `name`, `name low`, `name high`."""
    return {name: value.mean, f"{name} low": value.low, f"{name} high": value.high}
