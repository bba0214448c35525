"""Sink rates: the share of heads that give a position, or a token, more than epsilon (Gu et al. 2025, section 3.2)."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..checks import check_count, finite_number
from ..data.tokens import Tokens
from .metric import PerSequence

Alpha = Float[Tensor, "batch layer head pos"]  # importance in all attention layers
PerHead = Float[Tensor, "batch layer head"]


@dataclass(frozen=True)
class TokenSink:
    """How often a token id occurs, and the share of its (occurrence, layer, head) whose importance exceeds epsilon."""

    token: int
    occurrences: int
    share: float


def check_epsilon(epsilon: float) -> float:
    """Epsilon. Raises InputError unless it is a share of attention strictly between 0 and 1."""
    return finite_number(epsilon, "epsilon, a share of attention between 0 and 1,", above=0, below=1)


def epsilons_of(given: Any) -> list[float]:
    """The epsilons as Python's floats; a single one stands for itself. Raises InputError for none, and as above."""
    try:
        epsilons = [*given]
    except TypeError:
        epsilons = [given]
    check_count(epsilons, "epsilons, as in (0.3,)")
    return [check_epsilon(epsilon) for epsilon in epsilons]


def sink_rate(alpha: PerHead, epsilon: float) -> PerSequence:
    """Sink^epsilon of each sequence: the share of its heads whose importance exceeds epsilon, strictly; 0..1.

    NaN for a sequence that is too short to have the position.
    """
    check_epsilon(epsilon)
    return (alpha > epsilon).float().masked_fill(alpha.isnan(), torch.nan).mean((1, 2))


def sink_grid(alpha: Alpha, epsilons: Any) -> Float[Tensor, "epsilon pos"]:
    """Sink_k^epsilon of every position for every epsilon, in one pass over alpha; 0..1. Source: Gu et al. 2025, 3.2.

    `epsilons`: a number, or several in a list, a numpy array or a tensor, each between 0 and 1. Sequences that are
    too short for a position, NaN in alpha, do not count there. Raises InputError for an empty list, and for an epsilon
    that is not a share of attention.
    """
    edges, order = torch.tensor(epsilons_of(epsilons), dtype=alpha.dtype, device=alpha.device).sort()
    n, n_pos = len(edges) + 1, alpha.shape[-1]
    exceeded = torch.bucketize(alpha.nan_to_num(0), edges)  # how many epsilons lie strictly below
    bins = exceeded + n * torch.arange(n_pos, device=alpha.device)
    counts = torch.bincount(bins.flatten(), minlength=n * n_pos).reshape(n_pos, n)
    above = counts.flip(-1).cumsum(-1).flip(-1)[:, 1:].T
    return above[order.argsort()] / (~alpha.isnan()).sum((0, 1, 2))


def control_positions(length: int) -> tuple[int, ...]:
    """The first position and eight controls behind it, in the first half, where many queries see them."""
    return (0, *range(1, max(length // 2, 2), max(1, length // 16)))


def above_controls(excess: Alpha) -> PerSequence:
    """The share of each sequence's heads whose importance of the first position no chance explains; 0..1.

    excess: importance over its uniform null, of the first position and of controls behind it. Chance is the 99th
    percentile of the controls, over heads and sequences, so it gives .01. Source: arXiv 2606.02378.
    """
    first, controls = excess[..., 0], excess[..., 1:]
    known = controls[~controls.isnan()]
    bound = known.kthvalue(max(1, round(0.99 * len(known)))).values
    return (first > bound).float().masked_fill(first.isnan(), torch.nan).mean((1, 2))


def sink_positions(alpha: Alpha, null: Alpha, epsilon: float, share: float) -> Int[Tensor, " some_pos"]:
    """Positions (from 0) whose sink rate exceeds that of uniform attention, `null`, by more than `share`.

    Raises InputError unless 0 <= share < 1 and epsilon is a share of attention.
    """
    finite_number(share, "share, a part of the heads,", least=0, below=1)
    (rate,), (null_rate,) = (sink_grid(values, (epsilon,)) for values in (alpha, null))
    return (rate - null_rate > share).nonzero()[:, 0]


def sink_tokens(alpha: Alpha, tokens: Tokens, epsilon: float) -> list[TokenSink]:
    """Every token id that occurs, the largest share first, then the most frequent. Ids below 0 are padding.

    Raises InputError unless epsilon is a share of attention.
    """
    check_epsilon(epsilon)
    heads = (alpha > epsilon).sum((1, 2)).flatten()
    ids, id_of_place, occurrences = tokens.to(alpha.device).unique(return_inverse=True, return_counts=True)
    hits = torch.zeros_like(occurrences).index_add(0, id_of_place.flatten(), heads)
    shares = hits / (occurrences * alpha.shape[1] * alpha.shape[2])
    sinks = map(TokenSink, ids.tolist(), occurrences.tolist(), shares.tolist())
    return sorted((sink for sink in sinks if sink.token >= 0), key=lambda s: (-s.share, -s.occurrences, s.token))
