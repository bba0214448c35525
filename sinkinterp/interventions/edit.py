"""The base of every intervention."""

from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor

PositionIds = Int[Tensor, " pos"]


@dataclass(frozen=True)
class Edit:
    """What changes while a model runs. Override the method of the site that changes; the others pass through."""

    def position_ids(self, ids: PositionIds) -> PositionIds:
        """Rows of the position table that the tokens are given, by position in the sequence."""
        return ids
