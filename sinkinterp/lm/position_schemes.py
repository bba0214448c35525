"""Position schemes. Each does one of three things: adds to embeddings, rotates queries and keys, or adds to scores.

What is added to a score depends on the distance between query and key. A slot has no position, so it gets nothing.
"""

import math
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..attention.relative import RelativeBias, Scalars, Slopes
from ..attention.shapes import Residual
from ..checks import whole_number
from ..spec import Dims, Part

PositionIds = Int[Tensor, "#batch pos"]
KeyIds = Int[Tensor, "#batch key"]
QueriesOrKeys = Float[Tensor, "batch head pos d_head"]


class Position(nn.Module):
    """No positions. Base of every scheme."""

    def embed(self, x: Residual, ids: PositionIds) -> Residual:
        """The residual stream that the first block reads."""
        return x

    def rotate(self, x: QueriesOrKeys, ids: PositionIds) -> QueriesOrKeys:
        """Queries or keys as they enter the attention call."""
        return x

    def by_distance(self) -> Slopes | Scalars | None:
        """The rule of what every layer adds to its scaled scores; None if nothing."""
        return None

    def bias(self, queries: PositionIds, keys: KeyIds) -> RelativeBias | None:
        """What every layer adds to its scaled scores; None if nothing."""
        rule = self.by_distance()
        return None if rule is None else RelativeBias(rule, queries, keys)


# waves and frequencies are computed in every pass: from_pretrained builds on the meta device and would lose a buffer


class _Waves(Position):
    def __init__(self, d_model: int, base: float) -> None:
        super().__init__()
        self.d_model, self.base = d_model, base

    def embed(self, x: Residual, ids: PositionIds) -> Residual:
        angle = _angles(ids, self.d_model, self.base)
        return x + rearrange([angle.sin(), angle.cos()], "two b pos wave -> b pos (wave two)").to(x.dtype)


class _Table(Position):
    def __init__(self, n_ctx: int, d_model: int) -> None:
        super().__init__()
        self.table = nn.Embedding(n_ctx, d_model)

    def embed(self, x: Residual, ids: PositionIds) -> Residual:
        return x + self.table(ids)


class _Rotary(Position):
    def __init__(self, d_head: int, base: float) -> None:
        super().__init__()
        self.d_head, self.base = d_head, base

    def rotate(self, x: QueriesOrKeys, ids: PositionIds) -> QueriesOrKeys:
        angle = _angles(ids, self.d_head, self.base)
        cos, sin = (f(angle).repeat(1, 1, 2)[:, None].to(x.dtype) for f in (torch.cos, torch.sin))
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin


def _angles(ids: PositionIds, width: int, base: float) -> Float[Tensor, "#batch pos wave"]:
    frequency = base ** (-torch.arange(0, width, 2, device=ids.device, dtype=torch.float) / width)
    return ids[..., None].float() * frequency


@dataclass(frozen=True)
class NoPosition(Part):
    """No positional information except that of the mask."""

    def build(self, dims: Dims) -> Position:
        return Position()


@dataclass(frozen=True)
class Sinusoidal(Part):
    """Fixed sines and cosines, interleaved, added to the embeddings. Positions count from 0 (equation 5)."""

    base: float = 10_000.0

    def build(self, dims: Dims) -> Position:
        return _Waves(dims.d_model, self.base)


@dataclass(frozen=True)
class Learned(Part):
    """A trained vector per position, added to the embeddings (GPT-2)."""

    def build(self, dims: Dims) -> Position:
        return _Table(dims.n_ctx, dims.d_model)


@dataclass(frozen=True)
class Rotary(Part):
    """Rotates queries and keys by their position, the halves of a head paired as in Llama (RoPE)."""

    base: float = 10_000.0

    def build(self, dims: Dims) -> Position:
        return _Rotary(dims.d_head, self.base)


def buckets(distance: Int[Tensor, "*axes"], count: int, reach: int) -> Int[Tensor, "*axes"]:
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
    def __init__(self, spec: "_Buckets", n_heads: int) -> None:
        super().__init__()
        self.spec, self.table = spec, nn.Embedding(spec.count, n_heads)

    def by_distance(self) -> Scalars:
        return Scalars(self.table(self.spec.of_near(self.table.weight.device)).mT)


class _BucketIndex(Position):
    def __init__(self, spec: "_Buckets") -> None:
        super().__init__()
        self.spec = spec

    def by_distance(self) -> Scalars:
        return Scalars(self.spec.of_near(torch.device("cpu"))[None].float())


class _Alibi(Position):
    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.slopes = slopes(n_heads)

    def by_distance(self) -> Slopes:
        return Slopes(torch.tensor(self.slopes))


@dataclass(frozen=True)
class _Buckets(Part):
    """`count` buckets of distances, up to `reach`."""

    count: int = 32
    reach: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number(self.count, "the count of buckets, below twice the reach,", 2, 2 * self.reach - 1)

    def of_near(self, device: torch.device) -> Int[Tensor, " distance"]:
        """The bucket of every distance from 0 to the first that falls into the last bucket, as all beyond do."""
        near = buckets(torch.arange(self.reach + 1), self.count, self.reach)
        return near[: 1 + int((near < self.count - 1).sum())].to(device)


@dataclass(frozen=True)
class T5Relative(_Buckets):
    """A trained scalar per bucket of distances and per head. All layers share one table (T5)."""

    def build(self, dims: Dims) -> Position:
        return _BucketTable(self, dims.n_heads)


@dataclass(frozen=True)
class BucketIndex(_Buckets):
    """The index of the bucket, not trained: the paper's equation 6. The release runs it as relative positions.

    It grows with distance, so it favours the first key: with equal scores otherwise, alpha_1 is 0.334 at T = 64.
    """

    def build(self, dims: Dims) -> Position:
        return _BucketIndex(self)


@dataclass(frozen=True)
class Alibi(Part):
    """-slope * distance, with a fixed slope per head."""

    def build(self, dims: Dims) -> Position:
        return _Alibi(dims.n_heads)
