"""Interventions on how attention layers compute: another kernel, other projections, other columns.

A column of the pattern belongs to a token, such as the sink, or to a slot: a learned k*, v* or a learned sink logit.
Edits of columns change their scores, their weights, and the queries that see them, as masks of caches do.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..attention import AttentionCall, Edit, HeadWeights, Prefix, SinkLogit, SlotRow, Window
from ..attention.kernels import Kernel, PNorm, Similarity, Unit
from ..checks import InputError, instance_of, whole_number
from ..spec import ABOVE_ZERO, Limits
from .selectors import InCalls, InLayers, OnHeads, OnKVHeads, OnPairs


@dataclass(frozen=True, repr=False)
class PatchNormalization(InCalls, OnHeads):
    """Any kernel of `attention.kernels` in place of a model's own, per layer and head.

    A similarity stands for its kernel without normalisation, as in `PatchNormalization(Sigmoid())`. Two drop a factor
    per row and so are normalised: `Exp()` stands for softmax, `ExpMinusOne()` is divided by the sum of its magnitudes.
    A function in its place takes scores, `batch head query key` with -inf at later keys, and returns weights. Softmax
    off by one is `AddSinkLogit()`.
    """

    kernel: Kernel | Similarity | Callable[[Tensor], Tensor]

    def __post_init__(self) -> None:
        if isinstance(self.kernel, type) or not callable(self.kernel):
            instance_of(self.kernel, Kernel | Similarity, "a kernel is a value, such as Sigmoid(), or a function")
        super().__post_init__()

    def changed(self, call: AttentionCall) -> AttentionCall:
        if isinstance(self.kernel, Similarity):
            normaliser = PNorm() if self.kernel.drops_factor else Unit()
            return self.rescored(call, kernel=Kernel(similarity=self.kernel, normaliser=normaliser))
        if isinstance(self.kernel, Kernel):
            return self.rescored(call, kernel=self.kernel)
        allowed = call.allowed()
        given = call.scores().masked_fill(~allowed, -torch.inf)
        function: Any = self.kernel
        weights = instance_of(function(given), Tensor, "a normalisation returns a tensor of weights")
        return self.on_heads(call, call.with_pattern(weights.masked_fill(~allowed, 0)))


@dataclass(frozen=True, repr=False)
class Temperature(InCalls, OnHeads):
    """Scores divided by `temperature` before they are normalised; above 1, attention is flatter.

    A softcap caps what was divided; position biases and sink logits are not divided.
    """

    temperature: float
    limits: ClassVar[Limits] = {"temperature": ABOVE_ZERO}

    def changed(self, call: AttentionCall) -> AttentionCall:
        return self.rescored(call, scale=call.scale / self.temperature)


# Projections: the biases b_Q, b_K and b_V, and what keys read of the residual stream

# These are not the paper's key biases k*, which are slots. Without rotary positions b_K adds the same number to all
# scores of a query, and softmax cancels it: zeroing b_K is then a null control. With rotary positions it has effects.


def _zeroed(edit: OnPairs, layer: int, weights: HeadWeights) -> HeadWeights:
    """The weights with no bias in the heads that the edit changes."""
    if not edit.acts_in(layer):
        return weights
    if weights.bias is None:
        raise InputError(f"layer {layer} has no such bias to zero; take a model with biases (GPT-2, OPT, Qwen2)")
    heads = edit.head_mask(layer, len(weights.bias)).to(weights.bias.device)
    return weights.with_bias(weights.bias.masked_fill(heads[:, None], 0))


@dataclass(frozen=True, repr=False)
class ZeroQueryBias(OnHeads):
    """b_Q = 0. Behind a layer norm, b_Q is the part of a query that does not depend on the token."""

    query_weights = _zeroed


@dataclass(frozen=True, repr=False)
class ZeroKeyBias(OnKVHeads):
    """b_K = 0: a null control without rotary positions, since it then leaves the pattern unchanged."""

    key_weights = _zeroed


@dataclass(frozen=True, repr=False)
class ZeroValueBias(OnKVHeads):
    """b_V = 0, which shifts what every head returns by the same vector."""

    value_weights = _zeroed


@dataclass(frozen=True, repr=False)
class BlindKeys(InLayers):
    """Keys no longer read dimensions `dims` of the normed residual: those columns of W_K are zero."""

    dims: Iterable[int]

    def key_weights(self, layer: int, weights: HeadWeights) -> HeadWeights:
        if not self.acts_in(layer):
            return weights
        weight = weights.weight.clone()
        weight[..., list(self.dims)] = 0
        return replace(weights, weight=weight)


Columns = Bool[Tensor, " column"]
Allowed = Bool[Tensor, "#batch #head query column"]


@dataclass(frozen=True)
class Share:
    """Shares out the attention that removed columns received."""

    def parts(self, call: AttentionCall, removed: Columns, allowed: Allowed) -> Tensor:
        """The part that each column receives. allowed: which of the columns that are left each query sees."""
        raise NotImplementedError


@dataclass(frozen=True)
class Dropped(Share):
    """It is lost: rows sum to less than before."""

    def parts(self, call: AttentionCall, removed: Columns, allowed: Allowed) -> Tensor:
        return torch.zeros_like(allowed)


@dataclass(frozen=True)
class Renormalised(Share):
    """The other columns receive it in proportion to their weights without the removed ones.

    It is lost where they would have nothing.
    """

    def parts(self, call: AttentionCall, removed: Columns, allowed: Allowed) -> Tensor:
        alone = call.pattern_without(removed)
        return (alone / alone.sum(-1, keepdim=True)).nan_to_num(0, 0, 0)


@dataclass(frozen=True)
class SpreadEvenly(Share):
    """The other columns that the query sees receive equal parts of it."""

    def parts(self, call: AttentionCall, removed: Columns, allowed: Allowed) -> Tensor:
        return allowed / allowed.sum(-1, keepdim=True).clamp(min=1)


@dataclass(frozen=True, repr=False)
class _Columns(InCalls, OnHeads):
    """The columns of chosen positions, the first by default."""

    positions: Iterable[int] = field(default=(0,), kw_only=True)


@dataclass(frozen=True, repr=False)
class RemoveColumn(_Columns):
    """Positions receive no attention; `share` says where it goes instead. For small T.

    A query that sees no other column keeps its row, such as the first query, which sees only itself. Name all positions
    in one edit: a second edit may give attention back to those of the first. Raises InputError where the positions are
    all that there is to see.
    """

    share: Share = Renormalised()

    def changed(self, call: AttentionCall) -> AttentionCall:
        n_columns = call.k.shape[2] + (call.slot is not None)
        columns = torch.zeros(n_columns, dtype=torch.bool, device=call.k.device)
        columns[[n_columns - call.k.shape[2] + position for position in self.positions]] = True
        allowed = torch.nn.functional.pad(call.allowed(), (n_columns - call.k.shape[2], 0), value=True) & ~columns
        sees_others = allowed.any(-1, keepdim=True)
        if n_columns > 1 and not sees_others.any():
            raise InputError(f"without these positions no query of layer {call.layer} sees a key")
        pattern = call.pattern()
        received = (pattern * columns).sum(-1, keepdim=True)
        shared = pattern * ~columns + received * self.share.parts(call, columns, allowed)
        pattern = torch.where(sees_others, shared, pattern)
        return self.on_heads(call, call.with_pattern(pattern))


@dataclass(frozen=True, repr=False)
class BiasColumn(_Columns):
    """`bias` is added to the scores of positions, before normalisation; ZeroTuning does so with the first token."""

    bias: float

    def changed(self, call: AttentionCall) -> AttentionCall:
        chosen = self._chosen_heads(call)
        added = call.q.new_zeros(1, 1 if chosen.all() else len(chosen), 1, call.k.shape[2])
        added[..., list(self.positions)] = self.bias
        bias = added.masked_fill(~chosen[:, None, None], 0).expand(-1, -1, call.q.shape[2], -1)
        return self.rescored_by_head(call, bias=bias if call.bias is None else call.bias + bias)


@dataclass(frozen=True, repr=False)
class AttendSelfOnly(_Columns):
    """Positions attend only to themselves and a slot, as the first token must; that makes sinks (arXiv:2605.06611)."""

    positions: Iterable[int] = field(kw_only=True)

    def changed(self, call: AttentionCall) -> AttentionCall:
        past = call.k.shape[2] - call.q.shape[2]
        queries = [position - past for position in self.positions if position >= past]
        mask = call.allowed().clone()
        mask[..., queries, :] = False
        mask[..., queries, [query + past for query in queries]] = True
        chosen = self._chosen_heads(call)
        mask = mask if chosen.all() else torch.where(chosen[:, None, None], mask, call.allowed())
        return self.rescored_by_head(call, mask=mask)


@dataclass(frozen=True, repr=False)
class RemoveKeySlot(InCalls):
    """Layers attend to tokens only: no k*, no sink logit."""

    def changed(self, call: AttentionCall) -> AttentionCall:
        _slot_of(call)
        return replace(call, slot=None)


@dataclass(frozen=True, repr=False)
class ZeroKeySlot(InCalls, OnHeads):
    """k* = 0, or a sink logit of 0: with v* = 0 that is softmax-off-by-one."""

    def changed(self, call: AttentionCall) -> AttentionCall:
        slot, heads = _slot_of(call), self._chosen_heads(call)
        if isinstance(slot, SlotRow):
            return replace(call, slot=SlotRow(slot.key.masked_fill(heads[:, None, None], 0), slot.value))
        return replace(call, slot=replace(slot, logit=slot.logit.masked_fill(heads, 0)))


@dataclass(frozen=True, repr=False)
class AddSinkLogit(InCalls, OnHeads):
    """A column of value zero and score `logit`; 0 is softmax-off-by-one. Raises InputError where a head has a slot.

    If only some heads of a layer are chosen, the column's score is -inf in the others, which give it nothing.
    """

    logit: float = 0.0

    def changed(self, call: AttentionCall) -> AttentionCall:
        chosen, slot = self._chosen_heads(call), call.slot
        if slot is None:
            slot = SinkLogit(torch.full((call.q.shape[1],), -torch.inf, device=call.q.device))
        if not isinstance(slot, SinkLogit) or (slot.logit[chosen] > -torch.inf).any():
            raise InputError(f"layer {call.layer} has a slot already; use ZeroKeySlot or RemoveKeySlot")
        return replace(call, slot=SinkLogit(slot.logit.masked_fill(chosen, self.logit)))


def _slot_of(call: AttentionCall) -> SlotRow | SinkLogit:
    if call.slot is None:
        raise InputError(f"layer {call.layer} has no slot to change; take a model with K biases or sink logits")
    return call.slot


@dataclass(frozen=True, repr=False)
class Evict(Edit):
    """The mask of a rolling cache, in one dense pass, on every backend and with every read.

    Queries see the first `sinks` keys and the last `window - sinks` up to their own, but not those between.

    Positions stay those of the text. Deeper layers read activations that were made under the same mask, as in a cache
    (arXiv:2309.17453). Raises InputError unless `window` is wider than `sinks`.
    """

    window: int
    sinks: int

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number(self.sinks, f"in a cache of {self.window} tokens the number of sinks", 0, self.window - 1)

    def call(self, call: AttentionCall) -> AttentionCall:
        recent = Window(self.window - self.sinks)
        mask = recent | Prefix(self.sinks) if self.sinks else recent
        kept = mask.allows(call.visibility.positions[:, None], call.keys[None])
        return replace(call, mask=torch.logical_and(call.allowed(), kept))


class First(Enum):
    """Says whether the first token is judged like any other, always kept, or evicted when it is not recent."""

    JUDGED = "judged"
    KEPT = "kept"
    EVICTED = "evicted"


@dataclass(frozen=True, repr=False)
class KeepHeaviest(Edit):
    """The mask of a cache of `window` tokens: the last `window - heavy` ones, and the `heavy` heaviest before them.

    A key's weight is the attention that it has received while it was in the cache, summed over the queries and over
    the heads that share it. What is evicted does not come back (H2O, arXiv:2306.14048). With a `seed` the weight is a
    random number for each sequence, kv head and key: the control of equal memory. Positions stay those of the text.
    Raises InputError unless the window is wider than `heavy`, and for fewer than one heavy token where the first is
    always kept.
    """

    window: int
    heavy: int
    first: First = First.JUDGED
    seed: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seed is not None:
            whole_number(self.seed, "seed of KeepHeaviest", 0, 2**63 - 1)
        least = 1 if self.first is First.KEPT else 0
        whole_number(self.heavy, f"in a cache of {self.window} tokens the number of heavy ones", least, self.window - 1)

    def call(self, call: AttentionCall) -> AttentionCall:
        if call.q.shape[2] != call.k.shape[2]:
            raise InputError("heavy hitters are counted over whole texts; give all tokens in one pass")
        group = call.q.shape[1] // call.k.shape[1]
        scores = call.scores().float().masked_fill(~call.allowed(), -torch.inf).unflatten(1, (-1, group))
        kept = self._kept(scores).repeat_interleave(group, 1)
        return replace(call, mask=torch.logical_and(call.allowed(), kept))

    def _kept(self, scores: Float[Tensor, "batch kv_head group query key"]) -> Bool[Tensor, "batch kv_head query key"]:
        """Which keys are in the cache of every query; the queries come one after the other."""
        cached = torch.zeros_like(scores[:, :, 0, 0], dtype=torch.bool)
        weight = torch.zeros(cached.shape)
        if self.seed is not None:
            weight = torch.rand(cached.shape, generator=torch.Generator().manual_seed(self.seed))
        weight, rows = weight.to(scores.device), []
        for query in range(scores.shape[-1]):
            cached[..., query] = True
            if query >= self.window:
                cached = self._without_lightest(cached, weight, query)
            rows.append(cached.clone())
            if self.seed is None:
                seen = scores[..., query, :].masked_fill(~cached[:, :, None], -torch.inf)
                weight += seen.softmax(-1).nan_to_num(0).sum(2)
        return torch.stack(rows, 2)

    def _without_lightest(
        self, cached: Bool[Tensor, "batch kv_head key"], weight: Float[Tensor, "batch kv_head key"], query: int
    ) -> Bool[Tensor, "batch kv_head key"]:
        """The cache after one key is evicted: the lightest of those that are not recent."""
        value = weight.masked_fill(~cached, torch.inf)
        value[..., query - (self.window - self.heavy) + 1 :] = torch.inf
        if self.first is not First.JUDGED and cached[..., 0].any():
            value[..., 0] = torch.inf if self.first is First.KEPT else -torch.inf
        return cached.scatter(-1, value.argmin(-1, keepdim=True), False)
