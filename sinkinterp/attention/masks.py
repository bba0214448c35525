"""Which (query, key) pairs may attend: masks as rules of positions, and what follows from them for one call.

Masks combine with `&` and `|`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ..spec import Limits, Spec
from .shapes import Allowed, KeyIndex, SomeAllowed

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
    limits: ClassVar[Limits] = {"width": 1}  # the query's own key

    def allows(self, query: Positions, key: Positions) -> Bool[Tensor, "..."]:
        return query - key < self.width


@dataclass(frozen=True)
class Prefix(Mask):
    """The first `length` keys, for every query. `Causal() | Prefix(n)` lets the first n tokens see each other."""

    length: int
    limits: ClassVar[Limits] = {"length": 1}

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


ALL = slice(None)
BLOCK = 64  # keys per block: at T = 32,768 and 12 heads, 100 MB of fp32 scores


def key_blocks(keys: KeyIndex, block: int = BLOCK) -> Iterable[Tensor]:
    """`keys` in blocks of at most `block`."""
    return keys.split(block)


@dataclass(frozen=True, eq=False)
class Visibility:
    """Which keys each query may attend to.

    mask: pairs that may attend; None is causal, the last query aligned with the last key.
    """

    n_queries: int
    n_keys: int
    device: torch.device
    mask: Allowed | None = None

    @property
    def past(self) -> int:
        """How many keys come before the first query."""
        return self.n_keys - self.n_queries

    @cached_property
    def positions(self) -> Int[Tensor, " query"]:
        """The position of each query among the keys."""
        return torch.arange(self.past, self.n_keys, device=self.device)

    @cached_property
    def n_visible(self) -> Int[Tensor, "#batch #head query"]:
        """How many keys each query can see."""
        return self.positions[None, None] + 1 if self.mask is None else self.mask.sum(-1)

    def allowed(self, keys: KeyIndex | None = None, rows: slice = ALL) -> SomeAllowed:
        """Which of a run of queries may attend to the chosen keys (default all)."""
        if self.mask is not None:
            mask = self.mask[..., rows, :]
            return mask if keys is None else mask[..., keys]
        keys = torch.arange(self.n_keys, device=self.device) if keys is None else keys
        return (keys[None, :] <= self.positions[rows, None])[None, None]

    def has_pairs(self, keys: KeyIndex, rows: slice) -> bool:
        """Whether any of a run of queries may attend to any of the chosen keys."""
        if self.mask is not None:
            return bool(self.mask[..., rows, keys].any())
        return bool(self.positions[rows][-1] >= keys.min())

    def watchers(self, keys: KeyIndex) -> Int[Tensor, "#batch #head some_key"]:
        """How many queries can see each of the chosen keys."""
        if self.mask is not None:
            return torch.cat([self.mask[..., block].sum(2) for block in key_blocks(keys)], -1)
        return (self.n_queries - (keys - self.past).clamp(min=0))[None, None]

    def regions(self, keys: KeyIndex) -> tuple[slice, slice]:
        """The queries that may see some of the chosen keys, and those that see all of them; the others see none.

        With a mask, every query is in the first region. Without one, for keys 2 to 4 of 7:

                     key   2 3 4
            query 0, 1     . . .     left out
            query 2        x . .     first region: the triangle
            query 3        x x .
            query 4        x x x     second region: the rectangle, where nothing has to be masked
            query 5, 6     x x x
        """
        if self.mask is not None or not len(keys):
            return ALL, slice(self.n_queries, None)
        first, last = (max(key - self.past, 0) for key in torch.stack(keys.aminmax()).tolist())
        return slice(first, last), slice(last, None)
