"""Positional information. It may be added to the embeddings or rotate queries and keys; a scheme overrides one."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..spec import Dims, Part

Residual = Float[Tensor, "batch pos d_model"]
Heads = Float[Tensor, "batch head pos d_head"]
PositionIds = Int[Tensor, "#batch pos"]


class Position(nn.Module):
    """No position at all, and the base of every scheme."""

    def embed(self, x: Residual, ids: PositionIds) -> Residual:
        return x

    def rotate(self, x: Heads, ids: PositionIds) -> Heads:
        return x


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
        # frequencies are made here, not stored: from_pretrained builds on the meta device and would lose a buffer
        frequency = self.base ** (-torch.arange(0, self.d_head, 2, device=x.device, dtype=torch.float) / self.d_head)
        angle = ids[..., None].float() * frequency
        cos, sin = (f(angle).repeat(1, 1, 2)[:, None].to(x.dtype) for f in (torch.cos, torch.sin))
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin


@dataclass(frozen=True)
class NoPosition(Part):
    """The mask alone tells positions apart."""

    def build(self, dims: Dims) -> Position:
        return Position()


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
