"""Slots: columns of the pattern that belong to no token, open to every query and never rotated.

`SlotRow` and `SinkLogit` are what one attention call sees; the specs below them are trained parameters of a model.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..spec import Dims, Part

Queries = Float[Tensor, "batch head query d_head"]
Column = Float[Tensor, "batch head query 1"]


@dataclass(frozen=True)
class SlotRow:
    """A key k* and a value v* for every head (Gu et al. 2025, section 7.1)."""

    key: Float[Tensor, "head 1 d_head"]
    value: Float[Tensor, "head 1 d_value"]

    def scores(self, queries: Queries, scale: float) -> Column:
        return torch.einsum("bhid,hjd->bhij", queries, self.key.to(queries.dtype)) * scale


@dataclass(frozen=True)
class SinkLogit:
    """A learned score per head whose value is zero (GPT-OSS): the weights on tokens sum to less than one."""

    logit: Float[Tensor, " head"]

    def scores(self, queries: Queries, scale: float) -> Column:
        return self.logit.to(queries.dtype)[None, :, None, None].repeat(len(queries), 1, queries.shape[2], 1)


Slot = SlotRow | SinkLogit | None


@dataclass(frozen=True)
class LearnedRow(Part):
    """A trained vector per head, drawn from N(0, std^2)."""

    std: float = 0.02

    def build(self, dims: Dims) -> nn.Parameter:
        return nn.Parameter(torch.randn(dims.n_heads, 1, dims.d_head) * self.std)


@dataclass(frozen=True)
class ZeroRow(Part):
    """The zero vector, never trained."""

    def build(self, dims: Dims) -> nn.Parameter:
        return nn.Parameter(torch.zeros(dims.n_heads, 1, dims.d_head), requires_grad=False)


class Slots(nn.Module):
    """No slot, and the base of every kind of slot."""

    def forward(self) -> Slot:
        return None


class _KeySlot(Slots):
    def __init__(self, key: nn.Parameter, value: nn.Parameter) -> None:
        super().__init__()
        self.key, self.value = key, value

    def forward(self) -> SlotRow:
        return SlotRow(self.key, self.value)


@dataclass(frozen=True)
class NoSlots(Part):
    """Every column of the pattern is a token."""

    def build(self, dims: Dims) -> Slots:
        return Slots()


@dataclass(frozen=True)
class KeySlot(Part):
    """One extra column: K biases where the value is `ZeroRow()`, KV biases where both rows are learned."""

    k: Part = LearnedRow()
    v: Part = ZeroRow()

    def build(self, dims: Dims) -> Slots:
        return _KeySlot(self.k.build(dims), self.v.build(dims))
