"""Interventions on the sink's column of the pattern: bias it, remove it, spread its mass, or make another sink."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..attention.call import AttentionCall
from ..attention.model_shape import ModelShape
from .edit import Edit
from .selectors import OnHeads, drawn, inside, settle

Pattern = Float[Tensor, "batch head query column"]
Allowed = Bool[Tensor, "#batch #head query column"]


@dataclass(frozen=True)
class Share:
    """What becomes of the attention that removed columns received."""

    def share(self, removed: Float[Tensor, "batch head query 1"], rest: Pattern, allowed: Allowed) -> Pattern:
        """The pattern after `removed` was taken from it, `rest` being what is left on the `allowed` columns."""
        raise NotImplementedError


@dataclass(frozen=True)
class Dropped(Share):
    """It is lost: rows sum to less than before."""

    def share(self, removed: Float[Tensor, "batch head query 1"], rest: Pattern, allowed: Allowed) -> Pattern:
        return rest


@dataclass(frozen=True)
class Renormalised(Share):
    """The other columns receive it in proportion to what they have; it is lost where they have nothing in fp32."""

    def share(self, removed: Float[Tensor, "batch head query 1"], rest: Pattern, allowed: Allowed) -> Pattern:
        left = rest.sum(-1, keepdim=True)
        return rest * (1 + removed / torch.where(left == 0, 1, left))


@dataclass(frozen=True)
class SpreadEvenly(Share):
    """The other columns that the query sees receive equal parts of it."""

    def share(self, removed: Float[Tensor, "batch head query 1"], rest: Pattern, allowed: Allowed) -> Pattern:
        return rest + removed * allowed / allowed.sum(-1, keepdim=True).clamp(min=1)


@dataclass(frozen=True)
class _Columns(OnHeads):
    """The columns of chosen positions, the first by default."""

    positions: Iterable[int] = field(default=(0,), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        settle(self, "positions")

    def check(self, shape: ModelShape, length: int) -> None:
        super().check(shape, length)
        inside(self.positions, range(length), "position")

    def control(self, shape: ModelShape, length: int, generator: torch.Generator) -> Edit:
        return drawn(self, "positions", range(length), generator)


@dataclass(frozen=True)
class RemoveColumn(_Columns):
    """Positions receive no attention; queries do with it what `share` says. For small T.

    A query that would be left with nothing to look at keeps what it has, as the first does where it sees itself alone.
    """

    share: Share = Renormalised()

    def call(self, call: AttentionCall) -> AttentionCall:
        if not self.acts_in(call.layer):
            return call
        pattern = call.pattern()
        first = pattern.shape[-1] - call.k.shape[2]
        allowed = torch.nn.functional.pad(call.allowed(), (first, 0), value=True)
        gone = torch.zeros(pattern.shape[-1], dtype=torch.bool, device=pattern.device)
        gone[[first + position for position in self.positions]] = True
        kept = allowed & ~gone
        rest = pattern * ~gone
        shared = self.share.share((pattern * gone).sum(-1, keepdim=True), rest, kept)
        return self.on_heads(call, call.with_pattern(torch.where(kept.any(-1, keepdim=True), shared, pattern)))


@dataclass(frozen=True)
class BiasColumn(_Columns):
    """`bias` is added to the scores of positions, before normalisation: ZeroTuning's knob on the first token."""

    bias: float

    def call(self, call: AttentionCall) -> AttentionCall:
        if not self.acts_in(call.layer):
            return call
        added = call.q.new_zeros(1, 1, 1, call.k.shape[2])
        added[..., list(self.positions)] = self.bias
        whole = added.expand(-1, -1, call.q.shape[2], -1)
        return self.on_heads(call, replace(call, bias=whole if call.bias is None else call.bias + whole))


@dataclass(frozen=True)
class AttendSelfOnly(_Columns):
    """Positions attend to themselves, and a slot, alone, as the first token must: it makes sinks (arXiv:2605.06611)."""

    positions: Iterable[int] = field(kw_only=True)

    def call(self, call: AttentionCall) -> AttentionCall:
        if not self.acts_in(call.layer):
            return call
        past = call.k.shape[2] - call.q.shape[2]
        here = [position - past for position in self.positions if position >= past]
        mask = call.allowed().clone()
        mask[..., here, :] = False
        mask[..., here, [row + past for row in here]] = True
        return self.on_heads(call, replace(call, mask=mask))
