"""The learnable sink token: a trained vector before the first token (Gu et al. 2025, section 7.1; Xiao et al. 2023).

It comes first, so it sees only itself and is the same for every text. So in every layer it is one key and one value
that depend only on parameters: a slot. We compute it once per batch. It is not in the cache and has no output position.
A measurement reports the attention to it as slot importance, and position 0 stays the first token of the text, whose
tokens all move up by one position. The logits are exactly those of a model that gets the vector as its first embedding,
with two exceptions that we chose: a window never excludes it, and relative biases do not apply to it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..attention.shapes import Residual
from ..attention.slots import Slot
from ..spec import Dims, Part
from .position_schemes import Position


class Prepended(nn.Module):
    """Nothing before the first token. Base of the modules that put a token there."""

    def slots(self, blocks: Iterable[Any], position: Position) -> list[Slot]:
        """The slot of each block; None where a block gets none."""
        return [None for _ in blocks]


class _SinkToken(Prepended):
    def __init__(self, d_model: int, std: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, 1, d_model) * std)

    def slots(self, blocks: Iterable[Any], position: Position) -> list[Slot]:
        return [slot for slot, _ in self._through(blocks, position)]

    def stream(self, blocks: Iterable[Any], position: Position) -> Float[Tensor, "block d_model"]:
        """Its residual stream after each block."""
        return torch.cat([x[0] for _, x in self._through(blocks, position)])

    def _through(self, blocks: Iterable[Any], position: Position) -> Iterator[tuple[Slot, Residual]]:
        """Its slot in each block, and its residual stream after the block."""
        ids = torch.zeros(1, 1, dtype=torch.long, device=self.weight.device)
        x = position.embed(self.weight, ids)
        for block in blocks:
            slot, x = block.as_slot(x, position, ids)
            yield slot, x


@dataclass(frozen=True)
class Nothing(Part):
    """The text begins with its first token."""

    count: ClassVar[int] = 0

    def build(self, dims: Dims) -> Prepended:
        return Prepended()


@dataclass(frozen=True)
class SinkToken(Part):
    """A trained vector before the first token, drawn from N(0, std^2)."""

    std: float = 0.02
    count: ClassVar[int] = 1

    def build(self, dims: Dims) -> Prepended:
        return _SinkToken(dims.d_model, self.std)
