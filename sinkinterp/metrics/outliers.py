"""Outliers by length: tokens, or dimensions, whose norm is a multiple of the median norm."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..errors import InputError

TIMES = 10.0  # the multiple that dictionary_learning advises for its buffer of activations
Activations = Float[Tensor, "*stack d_model"]


def norm_limit(norms: Float[Tensor, "..."], times: float = TIMES) -> float:
    """The norm beyond which one is an outlier: `times` the median, the lower of two middle ones.

    The rule of dictionary_learning's ActivationBuffer (max_activation_norm_multiple). Raises InputError for a
    multiple of 1 or less, and without norms.
    """
    if not isinstance(times, int | float) or not times > 1:
        raise InputError(f"times is a multiple of the median norm, above 1; got {times}")
    if not norms.numel():
        raise InputError("there are no activations; give at least one token")
    return times * norms.float().flatten().median().item()


def outlier_tokens(x: Activations, times: float = TIMES) -> Bool[Tensor, "*stack"]:
    """Which vectors are longer than `times` the median length of all."""
    norms = x.float().norm(dim=-1)
    return norms > norm_limit(norms, times)


def outlier_dims(x: Activations, times: float = TIMES) -> Bool[Tensor, " d_model"]:
    """Which dimensions have a root mean square over all vectors above `times` the median dimension's."""
    sizes = x.float().flatten(0, -2).square().mean(0).sqrt()
    return sizes > norm_limit(sizes, times)


def fake_quantised(
    x: Float[Tensor, "*stack row column"], bits: int, over: tuple[int, ...]
) -> Float[Tensor, "*stack row column"]:
    """x rounded to `bits`-bit integers: symmetric, one scale over the axes `over`, from the largest magnitude."""
    levels = 2 ** (bits - 1) - 1
    scale = x.abs().amax(over, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny) / levels
    return (x / scale).round().clamp(-levels, levels) * scale
