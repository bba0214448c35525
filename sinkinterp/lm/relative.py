"""Relative positions: a bias on every score that depends on how far back the key lies.

A slot is at no distance, so it has no bias.
"""

import math
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Int
from torch import Tensor, nn

from ..spec import Dims, Part
from .positions import Bias, KeyIds, Position, PositionIds

Gap = Int[Tensor, "#batch pos key"]


def _gap(queries: PositionIds, keys: KeyIds) -> Gap:
    return queries[:, :, None] - keys[:, None, :]


def buckets(gap: Gap, count: int, reach: int) -> Gap:
    """T5's causal buckets: one per step for the first half, log-spaced up to `reach` beyond (equation 6)."""
    gap, near = gap.clamp(min=0), count // 2
    far = near + (gap.clamp(min=near) / near).log() / math.log(reach / near) * (count - near)
    return torch.where(gap < near, gap, far.long().clamp(max=count - 1))


def slopes(n_heads: int) -> list[float]:
    """ALiBi's slope of every head: 2^(-8h/H), and for other head counts every other slope of twice as many (eq. 7)."""
    whole = 2 ** math.floor(math.log2(n_heads))
    geometric = [2 ** (-8 * h / whole) for h in range(1, whole + 1)]
    return geometric if whole == n_heads else geometric + slopes(2 * whole)[::2][: n_heads - whole]


class _BucketTable(Position):
    def __init__(self, spec: "T5Relative", n_heads: int) -> None:
        super().__init__()
        self.spec, self.table = spec, nn.Embedding(spec.count, n_heads)

    def bias(self, queries: PositionIds, keys: KeyIds) -> Bias:
        scalars = self.table(buckets(_gap(queries, keys), self.spec.count, self.spec.reach))
        return rearrange(scalars, "b pos key head -> b head pos key").float()


class _BucketIndex(Position):
    def __init__(self, spec: "BucketIndex") -> None:
        super().__init__()
        self.spec = spec

    def bias(self, queries: PositionIds, keys: KeyIds) -> Bias:
        return buckets(_gap(queries, keys), self.spec.count, self.spec.reach)[:, None].float()


class _Alibi(Position):
    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.slopes = slopes(n_heads)

    def bias(self, queries: PositionIds, keys: KeyIds) -> Bias:
        gap = _gap(queries, keys).abs().float()  # within a prefix, keys may lie ahead
        return -torch.tensor(self.slopes, device=gap.device)[:, None, None] * gap[:, None]


@dataclass(frozen=True)
class T5Relative(Part):
    """A trained scalar per bucket of distances and head, one table for all layers (T5)."""

    count: int = 32
    reach: int = 128

    def __post_init__(self) -> None:
        _check(self.count, self.reach)

    def build(self, dims: Dims) -> Position:
        return _BucketTable(self, dims.n_heads)


@dataclass(frozen=True)
class BucketIndex(Part):
    """The bucket's index itself, untrained: the paper's equation 6 and what its release runs as relative positions.

    It grows with distance, so that it favours the first key: alone, it gives alpha_1 = 0.334 at T = 64.
    """

    count: int = 32
    reach: int = 128

    def __post_init__(self) -> None:
        _check(self.count, self.reach)

    def build(self, dims: Dims) -> Position:
        return _BucketIndex(self)


@dataclass(frozen=True)
class Alibi(Part):
    """-slope * distance, a fixed slope per head."""

    def build(self, dims: Dims) -> Position:
        return _Alibi(dims.n_heads)


def _check(count: int, reach: int) -> None:
    if not 2 <= count < 2 * reach:
        raise ValueError(f"half of the buckets, at least 1, lie within reach; got {count} buckets and reach {reach}")
