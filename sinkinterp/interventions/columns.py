"""Interventions on columns of the pattern, the sink's above all: bias it, remove it, share it out, make another."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from typing_extensions import override

from ..attention.call import AttentionCall
from ..attention.model_shape import ModelShape
from ..attention.shapes import Pattern
from .edit import Edit
from .selectors import OnHeads, check_chosen, draw_others, store_chosen

Removed = Float[Tensor, "batch head query 1"]
Allowed = Bool[Tensor, "#batch #head query column"]


@dataclass(frozen=True)
class Share:
    """What becomes of the attention that removed columns received."""

    def share(self, removed: Removed, kept: Pattern, allowed: Allowed) -> Pattern:
        """The new pattern. `removed` was taken from columns that are now 0; `kept` is what `allowed` columns have."""
        raise NotImplementedError


@dataclass(frozen=True)
class Dropped(Share):
    """It is lost: rows sum to less than before."""

    def share(self, removed: Removed, kept: Pattern, allowed: Allowed) -> Pattern:
        return kept


@dataclass(frozen=True)
class Renormalised(Share):
    """The other columns receive it in proportion to what they have; it is lost where they have nothing in fp32."""

    def share(self, removed: Removed, kept: Pattern, allowed: Allowed) -> Pattern:
        shares = kept / kept.sum(-1, keepdim=True)  # first, since `removed` over a tiny sum can overflow
        return kept + removed * shares.nan_to_num(0, 0, 0)


@dataclass(frozen=True)
class SpreadEvenly(Share):
    """The other columns that the query sees receive equal parts of it."""

    def share(self, removed: Removed, kept: Pattern, allowed: Allowed) -> Pattern:
        return kept + removed * allowed / allowed.sum(-1, keepdim=True).clamp(min=1)


@dataclass(frozen=True)
class _Columns(OnHeads):
    """The columns of chosen positions, the first by default."""

    positions: Iterable[int] = field(default=(0,), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        store_chosen(self, "positions")

    def check(self, shape: ModelShape, length: int) -> None:
        super().check(shape, length)
        check_chosen(self.positions, range(length), "position")

    def control(self, shape: ModelShape, length: int, generator: torch.Generator) -> Edit:
        return draw_others(self, "positions", range(length), generator)


@dataclass(frozen=True)
class RemoveColumn(_Columns):
    """Positions receive no attention; `share` says where it goes instead. For small T.

    A query that sees no other column keeps its row, such as the first query, which sees only itself.
    """

    share: Share = Renormalised()

    @override
    def call(self, call: AttentionCall) -> AttentionCall:
        if not self.acts_in(call.layer):
            return call
        pattern = call.pattern()
        first = pattern.shape[-1] - call.k.shape[2]
        allowed = torch.nn.functional.pad(call.allowed(), (first, 0), value=True)
        removed = torch.zeros(pattern.shape[-1], dtype=torch.bool, device=pattern.device)
        removed[[first + position for position in self.positions]] = True
        kept = allowed & ~removed
        shared = self.share.share((pattern * removed).sum(-1, keepdim=True), pattern * ~removed, kept)
        return self.on_heads(call, call.with_pattern(torch.where(kept.any(-1, keepdim=True), shared, pattern)))


@dataclass(frozen=True)
class BiasColumn(_Columns):
    """`bias` is added to the scores of positions, before normalisation; ZeroTuning does so with the first token."""

    bias: float

    @override
    def call(self, call: AttentionCall) -> AttentionCall:
        if not self.acts_in(call.layer):
            return call
        added = call.q.new_zeros(1, 1, 1, call.k.shape[2])
        added[..., list(self.positions)] = self.bias
        bias = added.expand(-1, -1, call.q.shape[2], -1)
        return self.rescored(call, bias=bias if call.bias is None else call.bias + bias)


@dataclass(frozen=True)
class AttendSelfOnly(_Columns):
    """Positions attend only to themselves and a slot, as the first token must; that makes sinks (arXiv:2605.06611)."""

    positions: Iterable[int] = field(kw_only=True)

    @override
    def call(self, call: AttentionCall) -> AttentionCall:
        if not self.acts_in(call.layer):
            return call
        past = call.k.shape[2] - call.q.shape[2]
        queries = [position - past for position in self.positions if position >= past]
        mask = call.allowed().clone()
        mask[..., queries, :] = False
        mask[..., queries, [query + past for query in queries]] = True
        return self.rescored(call, mask=mask)
