"""Sinks that nobody pointed at: which positions, which tokens, and which tokens that follow the first."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..errors import InputError
from .sink import check_epsilon

Alpha = Float[Tensor, "sequence layer head pos"]


@dataclass(frozen=True)
class TokenSink:
    """How often a token id occurs, and the share of its (occurrence, layer, head) whose importance exceeds epsilon."""

    token: int
    occurrences: int
    share: float


def sink_grid(alpha: Alpha, epsilons: Sequence[float]) -> Float[Tensor, "epsilon pos"]:
    """Sink_k^epsilon of every position for every epsilon, in one pass over alpha; 0..1. Source: Gu et al. 2025, 3.2.

    Sequences that are too short for a position, NaN in alpha, do not count there. Raises InputError for an epsilon
    that is no share of attention, or none at all.
    """
    if not epsilons:
        raise InputError("epsilons is empty; give at least one, as in (0.3,)")
    for epsilon in epsilons:
        check_epsilon(epsilon)
    edges, order = torch.tensor(tuple(epsilons), dtype=alpha.dtype, device=alpha.device).sort()
    n, n_pos = len(edges) + 1, alpha.shape[-1]
    exceeded = torch.bucketize(alpha.nan_to_num(0), edges)  # how many epsilons lie strictly below
    cells = exceeded + n * torch.arange(n_pos, device=alpha.device)
    counts = torch.bincount(cells.flatten(), minlength=n * n_pos).reshape(n_pos, n)
    above = counts.flip(-1).cumsum(-1).flip(-1)[:, 1:].T
    return above[order.argsort()] / (~alpha.isnan()).sum((0, 1, 2))


def sink_positions(alpha: Alpha, null: Alpha, epsilon: float, share: float) -> Int[Tensor, " found"]:
    """Positions (from 0) whose sink rate exceeds both `share` and that of uniform attention, `null`.

    Raises InputError unless 0 <= share < 1 and epsilon is a share of attention.
    """
    if not 0 <= share < 1:
        raise InputError(f"share is a part of the heads, from 0 to below 1; got {share}")
    (rate,), (null_rate,) = (sink_grid(values, (epsilon,)) for values in (alpha, null))
    return ((rate > share) & (rate > null_rate)).nonzero()[:, 0]


def sink_tokens(alpha: Alpha, tokens: Int[Tensor, "sequence pos"], epsilon: float) -> list[TokenSink]:
    """Every token id that occurs with how often it is a sink, most often first, then the most frequent.

    Ids below 0 are padding and do not count.

    Raises InputError unless epsilon is a share of attention.
    """
    check_epsilon(epsilon)
    heads = (alpha > epsilon).sum((1, 2)).flatten()
    ids, which, occurrences = tokens.to(alpha.device).unique(return_inverse=True, return_counts=True)
    hits = torch.zeros_like(occurrences).index_add(0, which.flatten(), heads)
    shares = hits / (occurrences * alpha.shape[1] * alpha.shape[2])
    rows = map(TokenSink, ids.tolist(), occurrences.tolist(), shares.tolist())
    return sorted((row for row in rows if row.token >= 0), key=lambda row: (-row.share, -row.occurrences, row.token))


def cosine_to_first(x: Float[Tensor, "sequence pos d_model"]) -> Float[Tensor, "sequence pos"]:
    """Cosine of every token's residual with the first token's; 0 for a vector of zeros."""
    return F.cosine_similarity(x.float(), x[:, :1].float(), dim=-1)


def secondary_sinks(
    cosines: Float[Tensor, "sequence block pos"], step_up: int, step_down: int, cosine: float = 0.9
) -> Bool[Tensor, "sequence pos"]:
    """Tokens after the first whose residual points its way, cos > `cosine`, in a block from step_up to step_down.

    Both ends count; the first token itself is False. Raises InputError for steps outside the blocks or out of order,
    and for a cosine that is not between 0 and 1. Source: Wong et al., arXiv 2512.22213.
    """
    if not 0 <= step_up <= step_down < cosines.shape[1]:
        raise InputError(
            f"step_up and step_down are indices from 0 to {cosines.shape[1] - 1}, in order; got {step_up}, {step_down}"
        )
    if not 0 < cosine < 1:
        raise InputError(f"cosine is between 0 and 1; got {cosine}")
    follows = (cosines[:, step_up : step_down + 1] > cosine).any(1)
    follows[:, 0] = False
    return follows
