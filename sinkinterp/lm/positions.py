"""Positional information: added to the embeddings, turning queries and keys, or added to scores; a scheme does one."""

from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..spec import Dims, Part

Residual = Float[Tensor, "batch pos d_model"]
Heads = Float[Tensor, "batch head pos d_head"]
PositionIds = Int[Tensor, "#batch pos"]
KeyIds = Int[Tensor, "#batch key"]
Bias = Float[Tensor, "#batch #head pos key"]


class Position(nn.Module):
    """No position at all, and the base of every scheme."""

    def embed(self, x: Residual, ids: PositionIds) -> Residual:
        return x

    def rotate(self, x: Heads, ids: PositionIds) -> Heads:
        return x

    def bias(self, queries: PositionIds, keys: KeyIds) -> Bias | None:
        """What every layer adds to its scaled scores."""
        return None


# waves and frequencies are made in use, not stored: from_pretrained builds on the meta device and would lose a buffer


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

    def rotate(self, x: Heads, ids: PositionIds) -> Heads:
        angle = _angles(ids, self.d_head, self.base)
        cos, sin = (f(angle).repeat(1, 1, 2)[:, None].to(x.dtype) for f in (torch.cos, torch.sin))
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin


def _angles(ids: PositionIds, width: int, base: float) -> Float[Tensor, "#batch pos wave"]:
    frequency = base ** (-torch.arange(0, width, 2, device=ids.device, dtype=torch.float) / width)
    return ids[..., None].float() * frequency


@dataclass(frozen=True)
class NoPosition(Part):
    """The mask alone tells positions apart."""

    def build(self, dims: Dims) -> Position:
        return Position()


@dataclass(frozen=True)
class Sinusoidal(Part):
    """Fixed sines and cosines in turn, added to the embeddings; positions count from 0 (equation 5)."""

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
    """Queries and keys rotated by their position, halves paired as in Llama."""

    base: float = 10_000.0

    def build(self, dims: Dims) -> Position:
        return _Rotary(dims.d_head, self.base)
