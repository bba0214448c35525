"""Slots: columns of the pattern that belong to no token; every query sees them, and they are never rotated.

An attention call has a `SlotRow` or a `SinkLogit`; the specs below them describe the parameters that a model trains.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..checks import whole_number
from ..spec import Dims, Part
from .shapes import Queries

HeadIndex = Int[Tensor, " some_head"]
Column = Float[Tensor, "batch head query 1"]


@dataclass(frozen=True)
class SlotRow:
    """A key k* and a value v* for every head (Gu et al. 2025, section 7.1)."""

    key: Float[Tensor, "head 1 d_head"]
    value: Float[Tensor, "head 1 d_value"]

    def scores(self, queries: Queries, scale: float) -> Column:
        """The score of every query with the slot."""
        return torch.einsum("bhid,hjd->bhij", queries, self.key.to(queries.dtype)) * scale

    def of_heads(self, heads: HeadIndex) -> "SlotRow":
        """The slot of some heads only."""
        return SlotRow(self.key[heads], self.value[heads])


@dataclass(frozen=True)
class SinkLogit:
    """A learned score per head, with a value of zero (GPT-OSS): the weights on tokens sum to less than one."""

    logit: Float[Tensor, " head"]

    def scores(self, queries: Queries, scale: float) -> Column:
        """The logit, once for every query."""
        return self.logit.to(queries.dtype)[None, :, None, None].repeat(len(queries), 1, queries.shape[2], 1)

    def of_heads(self, heads: HeadIndex) -> "SinkLogit":
        """The slot of some heads only."""
        return SinkLogit(self.logit[heads])


Slot = SlotRow | SinkLogit | None


class LearnedRow(Part):
    """A trained vector per head, drawn from N(0, std^2).

    dims: how many of its first dimensions are trained; the others are zero (Table 13). 0 trains all.
    shared: whether all heads of a layer share one vector (Table 12).
    """

    std: float = 0.02
    dims: int = 0
    shared: bool = False

    def build(self, dims: Dims) -> nn.Parameter:
        whole_number(self.dims, "the number of trained dimensions", 0, dims.d_head)
        heads = 1 if self.shared else dims.n_heads
        return nn.Parameter(torch.randn(heads, 1, self.dims or dims.d_head) * self.std)


class ZeroRow(Part):
    """The zero vector, never trained."""

    def build(self, dims: Dims) -> nn.Parameter:
        return _untrained(torch.zeros(1, 1, dims.d_head))


class FirstAxis(Part):
    """length * e_1, never trained: m v' of Table 5."""

    length: float = 1.0

    def build(self, dims: Dims) -> nn.Parameter:
        return _untrained(self.length * torch.eye(1, dims.d_head)[None])


class EvenRow(Part):
    """length / sqrt(d_head) in every dimension, never trained: m v'' of Table 5."""

    length: float = 1.0

    def build(self, dims: Dims) -> nn.Parameter:
        return _untrained(torch.full((1, 1, dims.d_head), self.length * dims.d_head**-0.5))


Row = LearnedRow | ZeroRow | FirstAxis | EvenRow


def _untrained(row: Tensor) -> nn.Parameter:
    # a parameter, so that checkpoints hold it: from_pretrained builds on the meta device, where its values are lost
    return nn.Parameter(row, requires_grad=False)


def whole_row(row: Float[Tensor, "#head 1 some_dims"], dims: Dims) -> Float[Tensor, "head 1 d_head"]:
    """The row of every head; dimensions that `row` lacks are zero."""
    return F.pad(row, (0, dims.d_head - row.shape[-1])).expand(dims.n_heads, -1, -1)


class Slots(nn.Module):
    """No slot, and the base of every kind of slot."""

    def forward(self) -> Slot:
        return None


class _KeySlot(Slots):
    def __init__(self, key: nn.Parameter, value: nn.Parameter, dims: Dims) -> None:
        super().__init__()
        self.key, self.value, self.dims = key, value, dims

    def forward(self) -> SlotRow:
        return SlotRow(whole_row(self.key, self.dims), whole_row(self.value, self.dims))


class LogitPerHead(Slots):
    """A trained score per head, in units of `unit`."""

    def __init__(self, logit: Tensor, unit: float = 1.0) -> None:
        super().__init__()
        self.logit, self.unit = nn.Parameter(logit), unit

    def forward(self) -> SinkLogit:
        return SinkLogit(self.logit * self.unit)


class NoSlots(Part):
    """Every column of the pattern is a token."""

    def build(self, dims: Dims) -> Slots:
        return Slots()


class KeySlot(Part):
    """One extra column. Its key is compared with queries after the feature map.

    A learned key with the value `ZeroRow()` is a K bias. A learned key and value are KV biases. If both are zero,
    softmax becomes softmax-off-by-one.
    """

    k: Row = LearnedRow()
    v: Row = ZeroRow()

    def build(self, dims: Dims) -> Slots:
        return _KeySlot(self.k.build(dims), self.v.build(dims), dims)


class LogitSlot(Part):
    """A trained score per head, drawn from N(0, std^2), with a value of zero (GPT-OSS)."""

    std: float = 0.02

    def build(self, dims: Dims) -> Slots:
        return LogitPerHead(torch.randn(dims.n_heads) * self.std)
