"""Which (query, key) pairs may attend: masks as rules of positions, and what follows from them for one call.

Masks combine with `&` and `|`.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ..spec import Limits, Spec
from .shapes import Allowed, KeyIndex, SomeAllowed

Positions = Int[Tensor, "..."]
T = TypeVar("T")


class Mask(Spec):
    """A rule that says which pairs may attend."""

    def allows(self, query: Positions, key: Positions) -> Bool[Tensor, "..."]:
        """Whether queries at some positions may attend to keys at others; broadcasts."""
        raise NotImplementedError

    def __and__(self, other: "Mask") -> "Mask":
        return Both(self, other)

    def __or__(self, other: "Mask") -> "Mask":
        return Either(self, other)


class Causal(Mask):
    """Keys up to the query itself."""

    def allows(self, query: Positions, key: Positions) -> Bool[Tensor, "..."]:
        return key <= query


class Window(Mask):
    """Keys less than `width` steps behind the query, later keys included."""

    width: int
    limits: ClassVar[Limits] = {"width": 1}  # the query's own key

    def allows(self, query: Positions, key: Positions) -> Bool[Tensor, "..."]:
        return query - key < self.width


class Prefix(Mask):
    """The first `length` keys, for every query. `Causal() | Prefix(n)` lets the first n tokens see each other."""

    length: int
    limits: ClassVar[Limits] = {"length": 1}

    def allows(self, query: Positions, key: Positions) -> Bool[Tensor, "..."]:
        return (key < self.length).expand(torch.broadcast_shapes(query.shape, key.shape))


class Both(Mask):
    """Pairs that two masks allow."""

    left: Mask
    right: Mask

    def allows(self, query: Positions, key: Positions) -> Bool[Tensor, "..."]:
        return self.left.allows(query, key) & self.right.allows(query, key)


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
    known: what was computed of it before. The layers of a pass share one object for each of their masks, so that
    numbers of masks and positions alone are computed once a pass.
    """

    n_queries: int
    n_keys: int
    device: torch.device
    mask: Allowed | None = None
    known: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)

    def once(self, what: Hashable, make: Callable[[], T]) -> T:
        """What `make` returns, computed when it is first asked for."""
        if what not in self.known:
            self.known[what] = make()
        value: T = self.known[what]
        return value

    @property
    def past(self) -> int:
        """How many keys come before the first query."""
        return self.n_keys - self.n_queries

    @property
    def causal(self) -> "Visibility":
        """The same without its mask."""
        return self if self.mask is None else self.once("causal", lambda: replace(self, mask=None))

    @cached_property
    def keys(self) -> KeyIndex:
        """Indices of all keys."""
        return torch.arange(self.n_keys, device=self.device)

    @cached_property
    def positions(self) -> Int[Tensor, " query"]:
        """The position of each query among the keys."""
        return torch.arange(self.past, self.n_keys, device=self.device)

    @cached_property
    def n_visible(self) -> Int[Tensor, "#batch #head query"]:
        """How many keys each query can see."""
        return self.positions[None, None] + 1 if self.mask is None else self.mask.sum(-1)

    @cached_property
    def has_blind_queries(self) -> bool:
        """Whether any query sees no key at all."""
        return self.past < 0 if self.mask is None else not self.mask.any(-1).all()

    @cached_property
    def looks_ahead(self) -> bool:
        """Whether any query sees a key behind its own."""
        return self.mask is not None and bool((self.mask & ~self.causal.allowed()).any())

    @cached_property
    def all_allowed(self) -> SomeAllowed:
        """Pairs that may attend."""
        return self.allowed(self.keys) if self.mask is None else self.mask

    @cached_property
    def hidden(self) -> SomeAllowed:
        """Pairs that may not attend."""
        return ~self.allowed()

    def hides(self, keys: KeyIndex) -> SomeAllowed:
        """Which queries may not attend to each of the chosen keys."""
        return self.once(("hidden", keys), lambda: ~self.allowed(keys))

    def allowed(self, keys: KeyIndex | None = None, rows: slice = ALL) -> SomeAllowed:
        """Which of a run of queries may attend to the chosen keys (default all)."""
        if keys is None and rows == ALL:
            return self.all_allowed
        if self.mask is not None:
            mask = self.mask[..., rows, :]
            return mask if keys is None else mask[..., keys]
        keys = self.keys if keys is None else keys
        positions = self.positions if rows == ALL else self.positions[rows]
        return keys <= positions.view(1, 1, -1, 1)

    def watchers(self, keys: KeyIndex) -> Int[Tensor, "#batch #head some_key"]:
        """How many queries can see each of the chosen keys."""
        return self.once(("watchers", keys), lambda: self._watchers(keys))

    def _watchers(self, keys: KeyIndex) -> Int[Tensor, "#batch #head some_key"]:
        if self.mask is not None:
            return torch.cat([self.mask[..., block].sum(2) for block in key_blocks(keys)], -1)
        return (self.n_queries - (keys - self.past).clamp(min=0))[None, None]

    def part(self, rows: slice) -> "Visibility":
        """That of a run of queries. Without a mask it has the keys up to the last of them."""
        start, stop, _ = rows.indices(self.n_queries)
        if stop - start == self.n_queries:
            return self
        n_keys = self.past + stop if self.mask is None else self.n_keys
        mask = None if self.mask is None else self.mask[..., rows, :]
        return Visibility(stop - start, n_keys, self.device, mask)


class Masks:
    """The masks of one pass. Its layers share them, and each is read once."""

    def __init__(self) -> None:
        self._read: dict[int, tuple[Tensor, tuple[Allowed, Tensor | None]]] = {}
        self._visibilities: dict[Hashable, Visibility] = {}

    def split(self, mask: Tensor) -> tuple[Allowed, Tensor | None]:
        """The pairs that an additive mask does not forbid, and the bias that it adds to them; None where that is 0."""
        known = self._read.get(id(mask))
        if known is None:
            known = self._read[id(mask)] = mask, _split(mask)
        return known[1]

    def visibility(self, n_queries: int, n_keys: int, device: torch.device, mask: Allowed | None) -> Visibility:
        """Which keys each query of a layer may attend to."""
        place = (n_queries, n_keys, device, None if mask is None else id(mask))
        return self._visibilities.setdefault(place, Visibility(n_queries, n_keys, device, mask))


def _split(mask: Tensor) -> tuple[Allowed, Tensor | None]:
    allowed = mask > torch.finfo(mask.dtype).min / 2
    added = mask.masked_fill(~allowed, 0)
    return allowed, added if added.any() else None
