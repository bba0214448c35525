"""Spectra: how many directions the residuals, keys or updates of a text have, and what a sink's value writes."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..attention import CALL, OUTPUT, RESIDUAL
from .metric import Metric


def singular_shares(x: Float[Tensor, "*stack row column"]) -> Float[Tensor, "*stack value"]:
    """s_i^2 / sum_j s_j^2 of the singular values in fp32, the smallest first; NaN for a matrix of zeros."""
    x = x.float()
    gram = x.mT @ x if x.shape[-1] <= x.shape[-2] else x @ x.mT
    energy = gram.diagonal(dim1=-2, dim2=-1).sum(-1)
    shares = gram / energy[..., None, None]  # eigenvalues sum to 1
    is_finite = shares.isfinite().all(-1).all(-1)
    values = torch.linalg.eigvalsh(shares.where(is_finite[..., None, None], 0)).clamp(min=0)
    return values.where(is_finite[..., None], torch.nan)


def stable_rank(x: Float[Tensor, "*stack row column"]) -> Float[Tensor, "*stack"]:
    """||X||_F^2 / ||X||_2^2, from 1 to the rank; NaN for a matrix of zeros."""
    return 1 / singular_shares(x)[..., -1]


def anisotropy(x: Float[Tensor, "*stack row column"]) -> Float[Tensor, "*stack"]:
    """s_1^2 / ||X||_F^2: the share of the longest direction, 1 where all rows have one.

    Source: Queipo-de-Llano et al., arXiv 2510.06477.
    """
    return singular_shares(x)[..., -1]


def matrix_entropy(x: Float[Tensor, "*stack row column"]) -> Float[Tensor, "*stack"]:
    """Entropy of s_i^2 / ||X||_F^2 in bits: 0 where all rows have one direction, at most log2 of the rank.

    Source: Queipo-de-Llano et al., arXiv 2510.06477.
    """
    shares = singular_shares(x)
    return -torch.special.xlogy(shares, shares).sum(-1) / torch.log(torch.tensor(2.0))


def with_random_directions(x: Float[Tensor, "*stack row column"], seed: int = 0) -> Float[Tensor, "*stack row column"]:
    """Rows of the same norms whose directions are drawn at random: the null of a spectrum that norms alone make."""
    drawn = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)).to(x.device)
    return drawn * (x.float().norm(dim=-1, keepdim=True) / drawn.norm(dim=-1, keepdim=True))


ENTROPY = Metric("matrix_entropy", RESIDUAL, matrix_entropy)
ANISOTROPY = Metric("anisotropy", RESIDUAL, anisotropy)
ENTROPY_OF_NORMS = Metric("matrix_entropy_null", RESIDUAL, lambda x: matrix_entropy(with_random_directions(x)))
ANISOTROPY_OF_NORMS = Metric("anisotropy_null", RESIDUAL, lambda x: anisotropy(with_random_directions(x)))
METRICS = (ENTROPY, ANISOTROPY, ENTROPY_OF_NORMS, ANISOTROPY_OF_NORMS)


def is_nop(value_ratio: Float[Tensor, "*stack"]) -> Bool[Tensor, "*stack"]:
    """Whether a sink writes next to nothing: ||v_s|| / mean ||v_i|| below 0.2. Source: Fesser, arXiv 2606.08105."""
    return value_ratio < 0.2


def is_broadcast(value_ratio: Float[Tensor, "*stack"]) -> Bool[Tensor, "*stack"]:
    """Whether a sink's value is as long as the others': 0.8 <= ||v_s|| / mean ||v_i|| <= 1.25."""
    return (value_ratio >= 0.8) & (value_ratio <= 1.25)


KEY_RANK = Metric("key_rank", CALL, lambda call: stable_rank(call.k))  # 1 where all keys have one direction
UPDATE_RANK = Metric("update_rank", OUTPUT, stable_rank)  # 1 where a head writes one direction to all positions
OF_HEADS = (KEY_RANK, UPDATE_RANK)
