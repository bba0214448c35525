"""Queries and keys pair by pair: maps for short sequences, distributions for any (Gu et al. 2025, Figure 2 bottom).

Queries and keys are those that the call multiplies, as in `geometry`. Bias, softcap and slot do not count.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention import flash
from ..attention.call import AttentionCall
from ..errors import InputError
from .qk import angled, lengthened, multiplied

BINS = 40
COSINES = tuple(i / 20 - 1 for i in range(BINS + 1))  # edges of bins, from -1 to 1
NORMS = tuple(2.0 ** (i / 2 - 8) for i in range(BINS + 1))  # from 1/256 to 4,096; what lies beyond counts at the ends

Map = Float[Tensor, "batch head query key"]
Counts = Float[Tensor, "batch head 2 bin"]


def angle_map(call: AttentionCall) -> Map:
    """cos(q_i, k_j), -1..1; NaN where the query cannot see the key."""
    return _visible(angled(call))


def norm_map(call: AttentionCall) -> Map:
    """|q_i| |k_j| * scale; NaN where the query cannot see the key."""
    return _visible(lengthened(call))


def score_map(call: AttentionCall) -> Map:
    """q_i . k_j * scale; NaN where the query cannot see the key."""
    return _visible(multiplied(call))


def angle_counts(call: AttentionCall) -> Counts:
    """How many visible pairs have a cosine in each bin of `COSINES`: [of the first key, of the others].

    Only queries that see the first key and another count. Raises InputError for a single key.
    """
    return _counts(angled(call), COSINES)


def norm_counts(call: AttentionCall) -> Counts:
    """As `angle_counts`, of |q_i| |k_j| * scale in the bins of `NORMS`."""
    return _counts(lengthened(call), NORMS)


def _visible(call: AttentionCall) -> Map:
    return call.scores().masked_fill(~call.allowed(), torch.nan)


def _counts(call: AttentionCall, edges: tuple[float, ...]) -> Counts:
    if len(call.keys) < 2:
        raise InputError("the first key is set beside others, and there is but one; give at least 2 tokens")
    inner = torch.tensor(edges[1:-1], device=call.k.device)
    first_seen, others_seen = call.allowed(call.keys[:1]), torch.zeros_like(call.allowed(call.keys[:1]))
    others = call.k.new_zeros(1)
    for keys in flash.key_blocks(call.keys[1:]):
        allowed = call.allowed(keys)
        others_seen = others_seen | allowed.any(-1, keepdim=True)
        others = others + _histogram(call, keys, allowed & first_seen, inner)
    first = _histogram(call, call.keys[:1], first_seen & others_seen, inner)
    return torch.stack((first, others), 2)


def _histogram(call: AttentionCall, keys: Tensor, counted: Tensor, inner: Tensor) -> Float[Tensor, "batch head bin"]:
    bins = torch.bucketize(call.scores(keys), inner)
    n_batch, n_head, n = *bins.shape[:2], len(inner) + 1
    row = torch.arange(n_batch * n_head, device=bins.device).reshape(n_batch, n_head, 1, 1)
    found = (row * n + bins)[counted.expand_as(bins)]
    return torch.bincount(found, minlength=n_batch * n_head * n).reshape(n_batch, n_head, n).float()
