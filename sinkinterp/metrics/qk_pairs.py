"""Queries and keys pair by pair: maps for short sequences, distributions for any (Gu et al. 2025, Figure 2 bottom).

Queries and keys are those that the call multiplies, as in `qk`. Bias, softcap and slot do not count.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..attention import flash
from ..attention.call import AttentionCall
from ..attention.shapes import KeyIndex, Scores
from ..errors import InputError
from .metric import CallMetric
from .qk import cosine_call, norm_product_call, product_call

BINS = 40
COSINES = tuple(i / 20 - 1 for i in range(BINS + 1))  # edges of bins, from -1 to 1
NORMS = tuple(2.0 ** (i / 2 - 8) for i in range(BINS + 1))  # from 1/256 to 4,096; what lies beyond counts at the ends

PairCounts = Float[Tensor, "batch head 2 bin"]  # of pairs with the first key, and of pairs with the others


def cosine_map(call: AttentionCall) -> Scores:
    """cos(q_i, k_j), -1..1; NaN where the query cannot see the key."""
    return _visible_scores(cosine_call(call))


def norm_product_map(call: AttentionCall) -> Scores:
    """|q_i| |k_j| * scale; NaN where the query cannot see the key."""
    return _visible_scores(norm_product_call(call))


def score_map(call: AttentionCall) -> Scores:
    """q_i . k_j * scale; NaN where the query cannot see the key."""
    return _visible_scores(product_call(call))


def cosine_counts(call: AttentionCall) -> PairCounts:
    """How many visible pairs have a cosine in each bin of `COSINES`: [of the first key, of the others].

    Only queries that see the first key and another count. Raises InputError for a single key.
    """
    return _counts(cosine_call(call), COSINES)


def norm_product_counts(call: AttentionCall) -> PairCounts:
    """As `cosine_counts`, of |q_i| |k_j| * scale in the bins of `NORMS`."""
    return _counts(norm_product_call(call), NORMS)


def _visible_scores(call: AttentionCall) -> Scores:
    return call.scores().masked_fill(~call.allowed(), torch.nan)


def _counts(call: AttentionCall, edges: tuple[float, ...]) -> PairCounts:
    if len(call.keys) < 2:
        raise InputError("a single key has no others to be compared with; give at least 2 tokens")
    inner_edges = torch.tensor(edges[1:-1], device=call.k.device)
    first_key = call.keys[:1]
    sees_first = call.allowed(first_key)
    sees_others, others = torch.zeros_like(sees_first), call.k.new_zeros(1)
    for keys in flash.key_blocks(call.keys[1:]):
        allowed = call.allowed(keys)
        sees_others = sees_others | allowed.any(-1, keepdim=True)
        others = others + _histogram(call, keys, allowed & sees_first, inner_edges)
    first = _histogram(call, first_key, sees_first & sees_others, inner_edges)
    return torch.stack((first, others), 2)


def _histogram(
    call: AttentionCall,
    keys: KeyIndex,
    counted: Bool[Tensor, "#batch #head query some_key"],
    inner_edges: Float[Tensor, " edge"],
) -> Float[Tensor, "batch head bin"]:
    """How many of the `counted` pairs have a score in each bin."""
    bins = torch.bucketize(call.scores(keys), inner_edges)
    n_batch, n_head, n = *bins.shape[:2], len(inner_edges) + 1
    row = torch.arange(n_batch * n_head, device=bins.device).reshape(n_batch, n_head, 1, 1)
    counted_bins = (row * n + bins)[counted.expand_as(bins)]
    return torch.bincount(counted_bins, minlength=n_batch * n_head * n).reshape(n_batch, n_head, n).float()


COSINE_COUNTS = CallMetric("angle_counts", cosine_counts)
NORM_PRODUCT_COUNTS = CallMetric("norm_counts", norm_product_counts)
METRICS = (COSINE_COUNTS, NORM_PRODUCT_COUNTS)
