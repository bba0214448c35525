"""Relative positions: a bias on every score that depends on the distance between query and key.

A slot has no position, so it has no bias.
"""

import math
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Int
from torch import Tensor, nn

from ..errors import InputError
from ..spec import Dims, Part
from .positions import Bias, KeyIds, Position, PositionIds

Distance = Int[Tensor, "#batch pos key"]  # from the key forward to the query; negative for later keys


def _distance(queries: PositionIds, keys: KeyIds) -> Distance:
    return queries[:, :, None] - keys[:, None, :]


def buckets(distance: Distance, count: int, reach: int) -> Distance:
    """T5's causal buckets: one per step in the first half, log-spaced up to `reach` in the second (equation 6)."""
    distance, near = distance.clamp(min=0), count // 2
    far = near + (distance.clamp(min=near) / near).log() / math.log(reach / near) * (count - near)
    return torch.where(distance < near, distance, far.long().clamp(max=count - 1))


def slopes(n_heads: int) -> list[float]:
    """ALiBi's slope for every head: 2^(-8h/H) if the number of heads H is a power of two (equation 7).

    Otherwise: the slopes for the next smaller power of two, then every other slope for twice that power.
    """
    power = 2 ** math.floor(math.log2(n_heads))
    geometric = [2 ** (-8 * h / power) for h in range(1, power + 1)]
    return geometric if power == n_heads else geometric + slopes(2 * power)[::2][: n_heads - power]


class _BucketTable(Position):
    def __init__(self, spec: "T5Relative", n_heads: int) -> None:
        super().__init__()
        self.spec, self.table = spec, nn.Embedding(spec.count, n_heads)

    def bias(self, queries: PositionIds, keys: KeyIds) -> Bias:
        scalars = self.table(buckets(_distance(queries, keys), self.spec.count, self.spec.reach))
        return rearrange(scalars, "b pos key head -> b head pos key").float()


class _BucketIndex(Position):
    def __init__(self, spec: "BucketIndex") -> None:
        super().__init__()
        self.spec = spec

    def bias(self, queries: PositionIds, keys: KeyIds) -> Bias:
        return buckets(_distance(queries, keys), self.spec.count, self.spec.reach)[:, None].float()


class _Alibi(Position):
    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.slopes = slopes(n_heads)

    def bias(self, queries: PositionIds, keys: KeyIds) -> Bias:
        distance = _distance(queries, keys).abs().float()  # a prefix mask also shows later keys
        return -torch.tensor(self.slopes, device=distance.device)[:, None, None] * distance[:, None]


@dataclass(frozen=True)
class T5Relative(Part):
    """A trained scalar per bucket of distances and per head. All layers share one table (T5)."""

    count: int = 32
    reach: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self.count, self.reach)

    def build(self, dims: Dims) -> Position:
        return _BucketTable(self, dims.n_heads)


@dataclass(frozen=True)
class BucketIndex(Part):
    """The index of the bucket, not trained: the paper's equation 6, and what its release runs as relative positions.

    It grows with distance, so it favours the first key: with equal scores otherwise, alpha_1 is 0.334 at T = 64.
    """

    count: int = 32
    reach: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self.count, self.reach)

    def build(self, dims: Dims) -> Position:
        return _BucketIndex(self)


@dataclass(frozen=True)
class Alibi(Part):
    """-slope * distance, with a fixed slope per head."""

    def build(self, dims: Dims) -> Position:
        return _Alibi(dims.n_heads)


def _check(count: int, reach: int) -> None:
    if not 2 <= count < 2 * reach:
        raise InputError(f"take at least 2 buckets and fewer than twice the reach; got {count}, reach {reach}")
