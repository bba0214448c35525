"""How much attention a key receives, and how many heads make a sink of it (Gu et al. 2025, section 3.2)."""

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attention.call import AttentionCall
from ..attention.fixed import FixedPattern
from ..errors import InputError

Index = Int[Tensor, " pos"]
Importance = Float[Tensor, "batch head pos"]


def proxy(call: AttentionCall) -> AttentionCall:
    """The call whose weights are |sim| / sum |sim|: itself where rows sum to one already (section 7.2)."""
    kernel = call.kernel
    if kernel.is_normalised:
        return call
    if isinstance(call, FixedPattern):
        size = call.pattern().abs()
        total = size.sum(-1, keepdim=True).clamp(min=torch.finfo(size.dtype).tiny)
        return FixedPattern.of(call, size / total)
    return replace(call, kernel=kernel.proxy)


def importance(call: AttentionCall, positions: Index) -> Importance:
    """alpha_k: the mean attention, or proxy score, that each position receives from the queries that can see it."""
    return proxy(call).column_mass(positions) / call.watchers(positions)


def raw_importance(call: AttentionCall, positions: Index) -> Importance:
    """As `importance`, of the weights that really multiply the values."""
    return call.column_mass(positions) / call.watchers(positions)


def importances(call: AttentionCall, positions: Index) -> Float[Tensor, "batch 2 head pos"]:
    """`importance` beside `raw_importance`, found in one go where they are the same."""
    alpha = importance(call, positions)
    return torch.stack((alpha, alpha if proxy(call) is call else raw_importance(call, positions)), 1)


def slot_importance(call: AttentionCall) -> Float[Tensor, "batch head"]:
    """alpha_*: the mean attention that the slot receives from all queries; 0 without a slot."""
    return proxy(call).slot_mass() / call.q.shape[2]


def uniform_importance(call: AttentionCall, positions: Index) -> Importance:
    """The null: importance if every query attended equally to all columns that it can see; H_T / T for causal key 0."""
    share = 1 / call.columns_seen().clamp(min=1)
    received = (call.allowed(positions) * share[..., None]).sum(2) / call.watchers(positions)
    return received.expand(*call.q.shape[:2], -1)


def uniform_slot_importance(call: AttentionCall) -> Float[Tensor, "batch head"]:
    """The null of `slot_importance`; 0 without a slot."""
    share = (1 / call.columns_seen().clamp(min=1)).mean(-1) * (call.slot is not None)
    return share.expand(*call.q.shape[:2])


def sink_rate(alpha: Float[Tensor, "sequence layer head"], epsilon: float) -> Float[Tensor, " sequence"]:
    """Sink^epsilon of each sequence: the share of its heads whose importance exceeds epsilon, strictly; 0..1."""
    check_epsilon(epsilon)
    return (alpha > epsilon).float().mean((1, 2))


def check_epsilon(epsilon: float) -> None:
    """Raises InputError unless epsilon is a share of attention strictly between 0 and 1."""
    if not 0 < epsilon < 1:
        raise InputError(f"epsilon is a share of attention, between 0 and 1; got {epsilon}")
