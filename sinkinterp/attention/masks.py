"""Which (query, key) pairs may attend. Masks are predicates on positions and combine with `&` and `|`."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ..spec import Spec

Index = Int[Tensor, "..."]


@dataclass(frozen=True)
class Mask(Spec):
    """A rule that says which pairs may attend."""

    def allows(self, query: Index, key: Index) -> Bool[Tensor, "..."]:
        """Whether the query at one position may attend to the key at another; broadcasts."""
        raise NotImplementedError

    def __and__(self, other: "Mask") -> "Mask":
        return Both(self, other)

    def __or__(self, other: "Mask") -> "Mask":
        return Either(self, other)


@dataclass(frozen=True)
class Causal(Mask):
    """Keys up to the query itself."""

    def allows(self, query: Index, key: Index) -> Bool[Tensor, "..."]:
        return key <= query


@dataclass(frozen=True)
class Window(Mask):
    """Keys fewer than `width` steps behind the query."""

    width: int

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"a window is at least 1 key wide, the query's own; got {self.width}")

    def allows(self, query: Index, key: Index) -> Bool[Tensor, "..."]:
        return query - key < self.width


@dataclass(frozen=True)
class Prefix(Mask):
    """The first `length` keys, open to every query: beside `Causal()`, they see each other both ways."""

    length: int

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"a prefix is at least 1 key long; got {self.length}")

    def allows(self, query: Index, key: Index) -> Bool[Tensor, "..."]:
        return (key < self.length).expand(torch.broadcast_shapes(query.shape, key.shape))


@dataclass(frozen=True)
class Both(Mask):
    """Pairs that two masks allow."""

    left: Mask
    right: Mask

    def allows(self, query: Index, key: Index) -> Bool[Tensor, "..."]:
        return self.left.allows(query, key) & self.right.allows(query, key)


@dataclass(frozen=True)
class Either(Mask):
    """Pairs that one of two masks allows."""

    left: Mask
    right: Mask

    def allows(self, query: Index, key: Index) -> Bool[Tensor, "..."]:
        return self.left.allows(query, key) | self.right.allows(query, key)
