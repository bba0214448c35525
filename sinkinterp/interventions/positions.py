"""Interventions on positions: those of Table 7 of Gu et al. (2025).

All but the last give tokens other position ids: rows of a table of learned positions, or angles of a rotation.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from ..attention import Edit, ModelShape, PositionIds, Residual
from ..checks import InputError, check_count
from .selectors import Choosing, check_chosen


@dataclass(frozen=True, repr=False)
class _PositionPair(Edit):
    """Two positions of the sequence, counted from 0."""

    first: int
    second: int
    _arrow: ClassVar[str] = "<->"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.first == self.second:
            raise InputError(f"position {self.first} with itself changes nothing; name two different positions")

    @property
    def in_paper(self) -> str:
        """The edit in the words of the paper, whose positions count from 1."""
        return f"p{self.first + 1} {self._arrow} p{self.second + 1}"

    def check(self, shape: ModelShape, length: int) -> None:
        check_chosen((self.first, self.second), range(length), "position")

    def control(self, shape: ModelShape, length: int, generator: torch.Generator) -> Edit:
        """The same edit of two other positions, drawn at random."""
        others = [position for position in range(length) if position not in (self.first, self.second)]
        check_count(others, f"other positions, which a control takes, in sequences of {length}", 2)
        first, second = (others[i] for i in torch.randperm(len(others), generator=generator)[:2])
        return replace(self, first=first, second=second)


@dataclass(frozen=True, repr=False)
class SwapPositions(_PositionPair):
    """The tokens at two positions exchange positions: p_first <-> p_second."""

    def position_ids(self, ids: PositionIds) -> PositionIds:
        swapped = ids.clone()
        swapped[[self.first, self.second]] = ids[[self.second, self.first]]
        return swapped


@dataclass(frozen=True, repr=False)
class ReplacePosition(_PositionPair):
    """The token at `first` is given the position of `second`: p_first <- p_second."""

    _arrow: ClassVar[str] = "<-"

    def position_ids(self, ids: PositionIds) -> PositionIds:
        replaced = ids.clone()
        replaced[self.first] = ids[self.second]
        return replaced


@dataclass(frozen=True, repr=False)
class RemovePosition(Choosing):
    """The tokens at `positions` (all by default) get no learned position: zero is added in its place."""

    positions: Iterable[int] | None = None

    def position_embedding(self, x: Residual) -> Residual:
        rows = list(range(x.shape[-2]) if self.positions is None else self.positions)
        x = x.clone()
        x[..., rows, :] = 0
        return x
