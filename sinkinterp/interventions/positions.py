"""Interventions on learned position embeddings: what Table 7 of Gu et al. (2025) does to GPT-2."""

from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor

from ..errors import InputError
from .edit import Edit

PositionIds = Int[Tensor, " pos"]


@dataclass(frozen=True)
class _PositionPair(Edit):
    """Two positions of the sequence, counted from 0."""

    first: int
    second: int

    def __post_init__(self) -> None:
        if min(self.first, self.second) < 0:
            raise InputError(f"positions count from 0; got {self.first} and {self.second}")
        if self.first == self.second:
            raise InputError(f"position {self.first} with itself changes nothing; name two different positions")

    def _check(self, ids: PositionIds) -> None:
        if max(self.first, self.second) >= len(ids):
            raise InputError(
                f"position {max(self.first, self.second)} is outside the sequence; its last position is {len(ids) - 1}"
            )


@dataclass(frozen=True)
class SwapPositions(_PositionPair):
    """The tokens at two positions exchange position embeddings: p_first <-> p_second."""

    def position_ids(self, ids: PositionIds) -> PositionIds:
        self._check(ids)
        swapped = ids.clone()
        swapped[[self.first, self.second]] = ids[[self.second, self.first]]
        return swapped


@dataclass(frozen=True)
class ReplacePosition(_PositionPair):
    """The token at `first` is given the position embedding of `second`: p_first <- p_second."""

    def position_ids(self, ids: PositionIds) -> PositionIds:
        self._check(ids)
        replaced = ids.clone()
        replaced[self.first] = ids[self.second]
        return replaced
