"""Residuals, keys, values and updates as vectors: norms, massive activations, secondary sinks, spectra.

Norms, also of keys and values, and the first token's over the others': Gu et al. 2025, section 3.1.
Massive activations, the few entries thousands of times larger than the rest: Sun et al. 2024, arXiv 2402.17762.
Secondary sinks, later tokens whose residual points the way of the first token's: Wong et al., arXiv 2512.22213.
Spectra, how many directions the vectors of a text have: Queipo-de-Llano et al., arXiv 2510.06477.

A median is the lower of the two middle ones where the count is even. Everything is summed in fp32.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..attention import CALL, OUTPUT, RESIDUAL, Residual
from ..checks import finite_number, whole_number
from .metric import Metric, PerSequence


def vector_norms(x: Float[Tensor, "*stack d"]) -> Float[Tensor, "*stack"]:
    """Euclidean norm of every vector, summed in fp32."""
    x = x.float() if x.dtype == torch.float64 else x
    return torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32)


def norm_ratio(norms: Float[Tensor, "sequence *stack pos"], position: int = 0) -> Float[Tensor, " sequence *stack"]:
    """||x_position|| over the mean norm of the other positions, per sequence; positions that are NaN do not count."""
    chosen = norms[..., position]
    n_others = (~norms.isnan()).sum(-1) - 1
    others = norms.double().nansum(-1) - chosen.double()  # in fp32 a massive first norm would drown the others
    return (chosen * n_others / others).to(norms.dtype)


@dataclass(frozen=True)
class Steps:
    """Blocks between which the first token's residual is long: it rises before `up`, and has fallen at `down`.

    `down` is None where it never falls, as in models whose last block is read before it writes.
    """

    up: int
    down: int | None


def steps(ratio: Float[Tensor, " block"], least: float = 2.0) -> Steps | None:
    """The block where the first token's norm ratio steps up most, and the block from which it stays down.

    A step up is a factor of at least `least` from one block's input to the next; None without one. Down is below the
    geometric mean of the ratio before the step and the largest after it. Raises InputError unless `least` exceeds 1.
    Source: step-up and step-down blocks as in Wong et al., arXiv 2512.22213.
    """
    finite_number(least, "least, the factor of a step,", above=1)
    factors = ratio[1:] / ratio[:-1]
    if not len(factors) or not factors.max() >= least:
        return None
    up = int(factors.argmax()) + 1
    half = (ratio[up - 1] * ratio[up:].max()).sqrt()
    down = up + int((ratio[up:] >= half).nonzero()[-1]) + 1
    return Steps(up, down if down < len(ratio) else None)


KEPT = 5  # entries per sequence and block that TOP_ENTRIES keeps


@dataclass(frozen=True)
class Lifetime:
    """The blocks with massive activations: indices of the first (step up) and last (step down), and their number."""

    first: int
    last: int
    blocks: int


def peak(x: Residual) -> PerSequence:
    """Largest |x| of every sequence."""
    low, high = x.flatten(1).aminmax(dim=-1)
    return torch.maximum(-low, high).float()


def peak_over_median(x: Residual) -> PerSequence:
    """Psi = max |x| / median |x| over all tokens and channels of a sequence; inf where the median is 0."""
    return peak(x) / median_size(x)


LEAST, TIMES = 100.0, 1000.0  # what a massive activation exceeds, and how many medians it reaches


def is_massive(x: Residual) -> Bool[Tensor, "batch pos d_model"]:
    """Which entries exceed 100 in magnitude, and reach 1,000 times the median magnitude of their sequence.

    Source: Sun et al. 2024, section 2.
    """
    size = x.float().abs()
    return (size > LEAST) & (size >= TIMES * median_size(x)[:, None, None])


def massive_count(x: Residual) -> Int[Tensor, " batch"]:
    """How many entries of every sequence are massive; `is_massive` says what that is."""
    return is_massive(x).sum((1, 2))


def median_size(x: Residual) -> PerSequence:
    """Median |x| of every sequence, over all tokens and channels."""
    size = x.detach().float().abs().flatten(1)
    if size.device.type != "cpu":
        return size.median(-1).values
    middle = (size.shape[1] - 1) // 2
    size.numpy().partition(middle)  # in place; several times faster than torch.median
    return size[:, middle]


def kurtosis(x: Residual) -> PerSequence:
    """mean_j s_j^4 / (mean_j s_j^2)^2 of the channels' RMS s_j over tokens.

    1 where all channels are equal, d_model where one alone is not 0; NaN for a sequence of zeros. Source: He et al.,
    NeurIPS 2024.
    """
    energy = x.float().square().mean(1)
    return (energy / energy.mean(-1, keepdim=True)).square().mean(-1)


def top_entries(x: Residual, count: int) -> Float[Tensor, "batch entry 3"]:
    """[value, position, channel] of the `count` entries of every sequence that are largest in magnitude, in fp32.

    Values have their signs, and fall in magnitude. Raises InputError where there are fewer.
    """
    entries, d_model = x.float().flatten(1), x.shape[2]
    count = whole_number(count, "count, of entries,", 1, entries.shape[1])
    index = entries.abs().topk(count, -1).indices
    return torch.stack((entries.gather(1, index), index // d_model, index % d_model), -1)


def lifetime(massive_by_block: Bool[Tensor, " block"]) -> Lifetime | None:
    """First, last and number of the blocks with a massive activation; None without any. Gaps do not count."""
    blocks = massive_by_block.nonzero()[:, 0].tolist()
    return Lifetime(blocks[0], blocks[-1], len(blocks)) if blocks else None


def cosine_to(x: Residual, position: int = 0) -> Float[Tensor, "batch pos"]:
    """Cosine of every token's residual with that of the token at a position; 0 for a vector of zeros."""
    return F.cosine_similarity(x.float(), x[:, position, None].float(), dim=-1)


def secondary_sinks(
    cosines: Float[Tensor, "sequence block pos"], between: Steps, least: float = 0.9, position: int = 0
) -> tuple[Int[Tensor, "sequence pos"], Int[Tensor, "sequence pos"]]:
    """The later tokens whose residual points the way of the first token's while that is long.

    Returns the block before which each token becomes one, -1 for tokens that do not, and in how many blocks it is one.
    cosines: those of `cosine_to`, whose own token, at `position`, is left out. between: the blocks in which the first
    token's residual is long, as `steps` finds them. Source: Wong et al., arXiv 2512.22213.
    """
    down = cosines.shape[1] if between.down is None else between.down
    alike = cosines.abs()[:, between.up : down] > least
    alike[..., [0, position]] = False
    lifetime = alike.sum(1)
    return torch.where(lifetime > 0, between.up + alike.int().argmax(1), -1), lifetime


COSINE_TO_FIRST = Metric("cosine_to_first", RESIDUAL, cosine_to)
PEAK_OVER_MEDIAN = Metric("peak_over_median", RESIDUAL, peak_over_median)
MASSIVE_ENTRIES = Metric("massive_entries", RESIDUAL, massive_count)
KURTOSIS = Metric("kurtosis", RESIDUAL, kurtosis)
TOP_ENTRIES = Metric("top_entries", RESIDUAL, lambda x: top_entries(x, KEPT))
METRICS = (PEAK_OVER_MEDIAN, MASSIVE_ENTRIES, KURTOSIS, TOP_ENTRIES, COSINE_TO_FIRST)
# large, `sequence block channel pos`: positions are last, where a report pads shorter sequences
ALL_ENTRIES = Metric("residuals", RESIDUAL, lambda x: x.float().transpose(1, 2))


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
SPECTRA = (ENTROPY, ANISOTROPY, ENTROPY_OF_NORMS, ANISOTROPY_OF_NORMS)


def is_nop(value_ratio: Float[Tensor, "*stack"]) -> Bool[Tensor, "*stack"]:
    """Whether a sink writes next to nothing: ||v_s|| / mean ||v_i|| below 0.2. Source: Fesser, arXiv 2606.08105."""
    return value_ratio < 0.2


def is_broadcast(value_ratio: Float[Tensor, "*stack"]) -> Bool[Tensor, "*stack"]:
    """Whether a sink's value is as long as the others': 0.8 <= ||v_s|| / mean ||v_i|| <= 1.25."""
    return (value_ratio >= 0.8) & (value_ratio <= 1.25)


KEY_RANK = Metric("key_rank", CALL, lambda call: stable_rank(call.k))  # 1 where all keys have one direction
UPDATE_RANK = Metric("update_rank", OUTPUT, stable_rank)  # 1 where a head writes one direction to all positions
RANKS = (KEY_RANK, UPDATE_RANK)
