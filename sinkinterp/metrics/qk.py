"""Why queries look at a key: its angle with them, or its length (Gu et al. 2025, Figure 2 bottom, Figures 15-18).

Queries and keys are those that the call multiplies: rotated, and through the kernel's feature map where it has one.
Bias, softcap and slot do not count. An edit of the pattern does not change them.

Maps hold every pair, for short sequences.

A `Pair` of numbers is [the chosen key, the others]. A query counts if it can see the chosen key and at least one
other. It counts once in both: with its value for the chosen key, and with its mean over the others that it can see. A
pair is NaN where no query counts.
"""

from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ..attention import CALL, AttentionCall, Keys, Queries, key_blocks, maps
from ..checks import whole_number
from .metric import Metric
from .residuals import vector_norms

Pair = Float[Tensor, "batch head 2"]
_TINY = 1e-12  # what `F.normalize` divides a vector of zeros by


def qk_angles(call: AttentionCall, position: int = 0) -> Pair:
    """Mean cos(q_i, k_j) for the key at `position` (from 0) beside the others, -1..1; a vector of zeros has cosine 0.

    Raises InputError where the call has no such key, or no other. Source: Gu et al. 2025, Figures 2 and 15-18.
    """
    q, k = _featured(call)
    products = _with_chosen_and_others(call, q, F.normalize(k, dim=-1), position)
    return _mean_over_queries(call, products / vector_norms(q).clamp(min=_TINY)[..., None], position)


def qk_norm_products(call: AttentionCall, position: int = 0) -> Pair:
    """Mean `|q_i| |k_j| * scale` for the key at `position` (from 0) beside the others: scores at a cosine of 1.

    Errors as above. Source:
    Gu et al. 2025, Figures 2 and 15-18, which leave it out.
    """
    q, k = _featured(call)
    products = _with_chosen_and_others(call, vector_norms(q)[..., None], vector_norms(k)[..., None], position)
    return _mean_over_queries(call, products * call.scale, position)


Stack = Float[Tensor, "*stack"]


def score_gap(
    angles: Float[Tensor, "*stack 2"], norm_products: Float[Tensor, "*stack 2"]
) -> tuple[Stack, Stack, Stack]:
    """The gap of the chosen key's score over the others', its part by angle, and its part by norms, in units of scores.

    gap = c_1 n_1 - c_0 n_0 for mean cosines c and mean norm products n. Each part moves one factor while the other
    stays at the mean of the two, so that the parts sum to the gap. Mean scores differ by the gap and the covariance of
    c and n, which belongs to neither part.
    """
    (c, c_other), (n, n_other) = angles.unbind(-1), norm_products.unbind(-1)
    by_angle = (c - c_other) * (n + n_other) / 2
    by_norms = (n - n_other) * (c + c_other) / 2
    return c * n - c_other * n_other, by_angle, by_norms


def _featured(call: AttentionCall) -> tuple[Queries, Keys]:
    return call.kernel.feature(call.q.float()), call.kernel.feature(call.k.float())


def _with_chosen_and_others(
    call: AttentionCall, q: Queries, k: Keys, position: int
) -> Float[Tensor, "batch head query 2"]:
    """Every query's product with the chosen key, and its mean product with the others that it can see.

    A mean of products is the product with the mean key, so no query is multiplied by every key.
    """
    whole_number(k.shape[2], "the number of keys", 2)
    whole_number(position, "position", 0, k.shape[2] - 1)
    chosen = call.keys[position : position + 1]
    n_others = call.visibility.n_visible - call.allowed(chosen)[..., 0].long()
    by_kv_head = q.unflatten(1, (k.shape[1], -1))  # batch kv_head group query d
    to_chosen = by_kv_head @ k[:, :, None, chosen].mT
    sums = _sum_of_visible_keys(call, k.index_fill(2, chosen, 0))
    to_others = torch.linalg.vecdot(by_kv_head, sums.expand_as(by_kv_head))
    sums_of_products = torch.stack((to_chosen[..., 0], to_others), -1).flatten(1, 2)
    return sums_of_products / torch.stack((torch.ones_like(n_others), n_others.clamp(min=1)), -1)


def _sum_of_visible_keys(call: AttentionCall, k: Keys) -> Float[Tensor, "batch kv_head group query d"]:
    """For every query, the sum of the keys that it can see; one group where it is the same for all."""
    if call.mask is None:
        return k.cumsum(2)[:, :, None, call.visibility.past :]
    sums = k.new_zeros(())
    for keys in key_blocks(call.keys):
        allowed = call.allowed(keys).to(k.dtype)
        by_kv_head = allowed[:, None] if allowed.shape[1] == 1 else allowed.unflatten(1, (k.shape[1], -1))
        sums = sums + by_kv_head @ k[:, :, None, keys]
    return sums


def _mean_over_queries(call: AttentionCall, pair: Float[Tensor, "batch head query 2"], position: int) -> Pair:
    """The mean over the queries that can see the chosen key and another."""
    sees_chosen = call.allowed(call.keys[position : position + 1])[..., 0]
    sees_both = sees_chosen & (call.visibility.n_visible > 1)
    return (pair * sees_both[..., None]).sum(2) / sees_both.sum(2)[..., None]


QK_ANGLES = Metric("qk_angles", CALL, qk_angles)
QK_NORM_PRODUCTS = Metric("qk_norm_products", CALL, qk_norm_products)
METRICS = (QK_ANGLES, QK_NORM_PRODUCTS)


# cos(q_i, k_j), `|q_i| |k_j| * scale`, and scores with bias and softcap; NaN where the query cannot see the key
_MAPPED = (maps.COSINE, maps.NORM_PRODUCT, maps.SCORE)
cosine_map, norm_product_map, score_map = (partial(maps.visible, quantity=quantity) for quantity in _MAPPED)


SCORE_MAP = Metric("score_maps", CALL, score_map)
COSINE_MAP = Metric("cosine_maps", CALL, cosine_map)
NORM_PRODUCT_MAP = Metric("norm_product_maps", CALL, norm_product_map)
MAPS = (SCORE_MAP, COSINE_MAP, NORM_PRODUCT_MAP)
