"""Instruments: groups of reads that a measurement may take along, beside importance and norms."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attention.call import AttentionCall
from ..attention.shapes import Residual
from ..backends.subject import CallRead, ResidualRead
from ..metrics import angles, loss, massive, qk, secondary

LogitsRead = Callable[[Float[Tensor, "sequence pos vocab"], Int[Tensor, "sequence pos"]], Tensor]
TOP = 5  # residual entries per sequence and block that MASSIVE keeps


@dataclass(frozen=True)
class Instrument:
    """Reads by the name that a report keeps their answers under; every answer begins with the sequence."""

    calls: dict[str, CallRead] = field(default_factory=dict)
    residuals: dict[str, ResidualRead] = field(default_factory=dict)
    logits: dict[str, LogitsRead] = field(default_factory=dict)


def _update_rank(call: AttentionCall) -> Float[Tensor, "sequence head"]:
    return qk.stable_rank(call.output())


def _key_rank(call: AttentionCall) -> Float[Tensor, "sequence kv_head"]:
    return qk.stable_rank(call.k)


def _top_entries(x: Residual) -> Float[Tensor, "sequence entry 3"]:
    """[value, position, channel] of the largest entries."""
    top = massive.top_entries(x, TOP)
    return torch.stack((top.values, top.positions.float(), top.channels.float()), -1)


GEOMETRY = Instrument(
    calls={
        "qk_angles": qk.qk_angles,
        "qk_norm_products": qk.qk_norm_products,
        "key_rank": _key_rank,
        "update_rank": _update_rank,
    }
)
MASSIVE = Instrument(
    residuals={
        "peak_over_median": massive.peak_over_median,
        "massive_entries": lambda x: massive.is_massive(x).sum((1, 2)),
        "kurtosis": massive.kurtosis,
        "top_entries": _top_entries,
        "cosine_to_first": secondary.cosine_to_first,
    }
)
DISTRIBUTIONS = Instrument(calls={"angle_counts": angles.angle_counts, "norm_counts": angles.norm_counts})
"""How queries' angles with keys and their norm products are distributed: 160 numbers a head and sequence."""
RESIDUALS = Instrument(residuals={"residuals": lambda x: x.float().transpose(1, 2)})
"""Every residual entry, `sequence block channel pos`: for a few short sequences."""
LOSS = Instrument(logits={"loss": loss.next_token_loss})
ALL = (GEOMETRY, MASSIVE, LOSS)
