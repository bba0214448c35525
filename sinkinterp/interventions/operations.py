"""Operations: what becomes of an activation. Every site of `sites` takes any of them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..errors import InputError

Activation = Float[Tensor, "*sequence_head pos d"]


@dataclass(frozen=True)
class Operation:
    """Makes new activations of a layer from old ones; its site takes the chosen entries of them, and no others."""

    def __call__(self, layer: int, x: Activation) -> Activation:
        raise NotImplementedError

    def for_rows(self, rows: Int[Tensor, " sequence"]) -> "Operation":
        """The operation on these sequences alone; itself where all are treated alike."""
        return self


@dataclass(frozen=True)
class Keep(Operation):
    """The identity."""

    def __call__(self, layer: int, x: Activation) -> Activation:
        return x


@dataclass(frozen=True)
class Zero(Operation):
    """Nothing is left."""

    def __call__(self, layer: int, x: Activation) -> Activation:
        return torch.zeros_like(x)


@dataclass(frozen=True)
class SetTo(Operation):
    """One number in every chosen entry."""

    value: float

    def __call__(self, layer: int, x: Activation) -> Activation:
        return torch.full_like(x, self.value)


@dataclass(frozen=True)
class Scale(Operation):
    """Multiplied by a factor."""

    factor: float

    def __call__(self, layer: int, x: Activation) -> Activation:
        return x * self.factor


@dataclass(frozen=True)
class ClampNorm(Operation):
    """Vectors longer than `limit` are shrunk to that length."""

    limit: float

    def __call__(self, layer: int, x: Activation) -> Activation:
        tiny = torch.finfo(x.dtype).tiny
        return x * (self.limit / x.norm(dim=-1, keepdim=True).clamp(min=tiny)).clamp(max=1)


@dataclass(frozen=True)
class MeanOfOthers(Operation):
    """Every chosen vector becomes the mean over the positions after the first `skip`, of its own sequence.

    Sees the whole sequence: of use where a position is to look like any other, not where causality matters.
    """

    skip: int = 1

    def __call__(self, layer: int, x: Activation) -> Activation:
        if x.shape[-2] <= self.skip:
            raise InputError(f"{x.shape[-2]} positions leave none after the first {self.skip} for a mean; use more")
        return x[..., self.skip :, :].mean(-2, keepdim=True).expand_as(x)


@dataclass(frozen=True)
class MatchedNoise(Operation):
    """Random numbers with the mean and variance that each dimension has over the positions of its own sequence.

    Drawn from `seed`, the same for all sequences.
    """

    seed: int = 0

    def __call__(self, layer: int, x: Activation) -> Activation:
        generator = torch.Generator().manual_seed(1000 * self.seed + layer)
        noise = torch.randn(x.shape[1:], generator=generator).to(x)
        return x.mean(-2, keepdim=True) + x.std(-2, correction=0, keepdim=True) * noise


@dataclass(frozen=True)
class SwapWith(Operation):
    """The positions `first` and `second` exchange their vectors."""

    first: int
    second: int

    def __call__(self, layer: int, x: Activation) -> Activation:
        order = torch.arange(x.shape[-2], device=x.device)
        order[[self.first, self.second]] = order[[self.second, self.first]]
        return x[..., order, :]


@dataclass(frozen=True, eq=False)
class Given(Operation):
    """Activations that were taken before, by layer: of every sequence, or of all alike (one sequence)."""

    values: Mapping[int, Tensor]

    def for_rows(self, rows: Int[Tensor, " sequence"]) -> Operation:
        if all(len(value) == 1 for value in self.values.values()):
            return self
        return replace(self, values={layer: value[rows.to(value.device)] for layer, value in self.values.items()})

    def _fitting(self, layer: int, x: Activation) -> Activation:
        if layer not in self.values:
            raise InputError(f"no activations were taken of layer {layer}; choose among {sorted(self.values)}")
        value = self.values[layer].to(x)
        if value.shape[1:] != x.shape[1:] or len(value) not in (1, len(x)):
            raise InputError(
                f"activations {tuple(value.shape)} do not fit {tuple(x.shape)} of layer {layer}; "
                "patch between models of one shape and inputs of one length"
            )
        return value.expand_as(x)


class Put(Given):
    """They stand in for the model's own."""

    def __call__(self, layer: int, x: Activation) -> Activation:
        return self._fitting(layer, x)


class Add(Given):
    """They are added to the model's own."""

    def __call__(self, layer: int, x: Activation) -> Activation:
        return x + self._fitting(layer, x)
