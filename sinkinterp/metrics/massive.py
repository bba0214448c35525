"""Massive activations: the few residual entries thousands of times larger than the rest (Sun et al. 2024, 2402.17762).

A median is the lower of the two middle ones where the count is even. Everything is summed in fp32.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..errors import InputError

Residual = Float[Tensor, "sequence pos d_model"]
PerSequence = Float[Tensor, " sequence"]


@dataclass(frozen=True)
class Entries:
    """The largest residual entries of every sequence, by falling magnitude, with their signs."""

    values: Float[Tensor, "sequence entry"]
    positions: Int[Tensor, "sequence entry"]
    channels: Int[Tensor, "sequence entry"]


@dataclass(frozen=True)
class Lifetime:
    """Where massive activations stand: indices of the first (step up) and last (step down), and how many there are."""

    first: int
    last: int
    blocks: int


def peak(x: Residual) -> PerSequence:
    """Largest |x| of every sequence."""
    return x.float().abs().amax((1, 2))


def peak_over_median(x: Residual) -> PerSequence:
    """Psi = max |x| / median |x| over all tokens and channels of a sequence; inf where the median is 0."""
    return peak(x) / _median(x)


def is_massive(x: Residual, least: float = 100.0, times: float = 1000.0) -> Bool[Tensor, "sequence pos d_model"]:
    """Which entries exceed `least` in magnitude, and reach `times` the median magnitude of their sequence.

    Raises InputError for a threshold that is not positive. Source: Sun et al. 2024, section 2.
    """
    if not (least > 0 and times > 0):
        raise InputError(f"least and times are thresholds on magnitudes, above 0; got {least} and {times}")
    size = x.float().abs()
    return (size > least) & (size >= times * _median(x)[:, None, None])


def kurtosis(x: Residual) -> PerSequence:
    """mean_j s_j^4 / (mean_j s_j^2)^2 of the channels' RMS s_j over tokens: from 1, all equal, to d_model, one alone.

    NaN for a sequence of zeros. Source: He et al., NeurIPS 2024.
    """
    energy = x.float().square().mean(1)
    return (energy / energy.mean(-1, keepdim=True)).square().mean(-1)


def top_entries(x: Residual, count: int) -> Entries:
    """The `count` entries of every sequence that are largest in magnitude. Raises InputError where there are fewer."""
    flat = x.float().flatten(1)
    if not 1 <= count <= flat.shape[1]:
        raise InputError(f"count is a number of entries, from 1 to {flat.shape[1]}; got {count}")
    index = flat.abs().topk(count, -1).indices
    return Entries(flat.gather(1, index), index // x.shape[2], index % x.shape[2])


def lifetime(massive_by_block: Bool[Tensor, " block"]) -> Lifetime | None:
    """First, last and number of the blocks with a massive activation, those of a gap not counted; None without any."""
    blocks = massive_by_block.nonzero()[:, 0].tolist()
    return Lifetime(blocks[0], blocks[-1], len(blocks)) if blocks else None


def _median(x: Residual) -> PerSequence:
    return torch.median(x.float().abs().flatten(1), -1).values
