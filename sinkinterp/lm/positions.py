"""Position schemes. Each does one of three things: adds to embeddings, rotates queries and keys, or adds to scores."""

from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..attention.shapes import Residual
from ..spec import Dims, Part

PositionIds = Int[Tensor, "#batch pos"]
KeyIds = Int[Tensor, "#batch key"]
QueriesOrKeys = Float[Tensor, "batch head pos d_head"]
Bias = Float[Tensor, "#batch #head pos key"]


class Position(nn.Module):
    """No positions. Base of every scheme."""

    def embed(self, x: Residual, ids: PositionIds) -> Residual:
        """The residual stream that the first block reads."""
        return x

    def rotate(self, x: QueriesOrKeys, ids: PositionIds) -> QueriesOrKeys:
        """Queries or keys as they enter the attention call."""
        return x

    def bias(self, queries: PositionIds, keys: KeyIds) -> Bias | None:
        """What every layer adds to its scaled scores; None if nothing."""
        return None


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
