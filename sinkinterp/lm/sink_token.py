"""The learnable sink token: a trained vector before the first token (Gu et al. 2025, section 7.1; Xiao et al. 2023).

It comes first, so it sees itself only, whatever the text: in every layer it is one key and one value that depend on
parameters alone. That is a slot. So it is computed once for a batch, is in no cache, costs no output position, and a
measurement reports what it draws as slot importance while position 0 stays the first real token. Tokens move up by
one position. It is exact, not a stand-in: logits are those of a model that is given the vector as its first embedding.
Two things differ by choice: a window never loses it, and relative biases do not reach it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..attention.slots import Slot
from ..spec import Dims, Part
from .positions import Position


class Before(nn.Module):
    """Nothing before the first token, and the base of what may stand there."""

    def slots(self, blocks: Iterable[Any], position: Position) -> list[Slot]:
        """What each block sees of it."""
        return [None for _ in blocks]


class _SinkToken(Before):
    def __init__(self, d_model: int, std: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, 1, d_model) * std)

    def slots(self, blocks: Iterable[Any], position: Position) -> list[Slot]:
        return [slot for slot, _ in self._path(blocks, position)]

    def stream(self, blocks: Iterable[Any], position: Position) -> Float[Tensor, "block d_model"]:
        """Its residual stream after each block."""
        return torch.cat([x[0] for _, x in self._path(blocks, position)])

    def _path(self, blocks: Iterable[Any], position: Position) -> Iterable[tuple[Slot, Tensor]]:
        ids = torch.zeros(1, 1, dtype=torch.long, device=self.weight.device)
        x = position.embed(self.weight, ids)
        for block in blocks:
            slot, x = block.alone(x, position, ids)
            yield slot, x


@dataclass(frozen=True)
class Nothing(Part):
    """The first token comes first."""

    count: ClassVar[int] = 0

    def build(self, dims: Dims) -> Before:
        return Before()


@dataclass(frozen=True)
class SinkToken(Part):
    """A trained vector before the first token, drawn from N(0, std^2)."""

    std: float = 0.02
    count: ClassVar[int] = 1

    def build(self, dims: Dims) -> Before:
        return _SinkToken(dims.d_model, self.std)
