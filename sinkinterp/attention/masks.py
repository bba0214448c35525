"""Which (query, key) pairs may attend. Masks are predicates on positions and combine with `&` and `|`."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ..errors import InputError
from ..spec import Spec

Positions = Int[Tensor, "..."]


@dataclass(frozen=True)
class Mask(Spec):
    """A rule that says which pairs may attend."""

    def allows(self, query: Positions, key: Positions) -> Bool[Tensor, "..."]:
        """Whether queries at some positions may attend to keys at others; broadcasts."""
        raise NotImplementedError

    def __and__(self, other: "Mask") -> "Mask":
        return Both(self, other)

    def __or__(self, other: "Mask") -> "Mask":
        return Either(self, other)


@dataclass(frozen=True)
class Causal(Mask):
    """Keys up to the query itself."""

    def allows(self, query: Positions, key: Positions) -> Bool[Tensor, "..."]:
        return key <= query


@dataclass(frozen=True)
class Window(Mask):
    """Keys less than `width` steps behind the query, later keys included."""

    width: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width < 1:
            raise InputError(f"a window must be at least 1 key wide, which is the query's own; got {self.width}")

    def allows(self, query: Positions, key: Positions) -> Bool[Tensor, "..."]:
        return query - key < self.width


@dataclass(frozen=True)
class Prefix(Mask):
    """The first `length` keys, for every query. `Causal() | Prefix(n)` lets the first n tokens see each other."""

    length: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length < 1:
            raise InputError(f"a prefix must be at least 1 key long; got {self.length}")

    def allows(self, query: Positions, key: Positions) -> Bool[Tensor, "..."]:
        return (key < self.length).expand(torch.broadcast_shapes(query.shape, key.shape))


@dataclass(frozen=True)
class Both(Mask):
    """Pairs that two masks allow."""

    left: Mask
    right: Mask

    def allows(self, query: Positions, key: Positions) -> Bool[Tensor, "..."]:
        return self.left.allows(query, key) & self.right.allows(query, key)


@dataclass(frozen=True)
class Either(Mask):
    """Pairs that one of two masks allows."""

    left: Mask
    right: Mask

    def allows(self, query: Positions, key: Positions) -> Bool[Tensor, "..."]:
        return self.left.allows(query, key) | self.right.allows(query, key)
