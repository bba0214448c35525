"""Why a key is looked at: its angle with the queries, or its length (Gu et al. 2025, Figure 2 bottom, Figures 15-18).

Queries and keys are those that the call multiplies: rotated, and through the kernel's feature map where it has one.
A pair of numbers is [the chosen key, the others]: each query that can see the chosen key and at least one other gives
one value to either, for the others its mean over those that it can see, and queries are averaged. NaN without such a
query. Bias, softcap and slot do not count.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from ..attention import flash
from ..attention.call import AttentionCall
from ..attention.kernels import SOFTMAX
from ..errors import InputError

Pair = Float[Tensor, "batch head 2"]
Queries = Float[Tensor, "batch head query d_head"]
Keys = Float[Tensor, "batch kv_head key d_head"]
Rows = Float[Tensor, "batch head query"]
Ratios = Float[Tensor, "*stack"]
Mask = Bool[Tensor, "*stack"]


def qk_angles(call: AttentionCall, position: int = 0) -> Pair:
    """Mean cos(q_i, k_j) for the key at `position` (from 0) beside the others, -1..1; a vector of zeros has cosine 0.

    Raises InputError where the call has no such key, or no other. Source: Gu et al. 2025, Figures 2 and 15-18.
    """
    return _contrast(angled(call), position)


def qk_norm_products(call: AttentionCall, position: int = 0) -> Pair:
    """Mean |q_i| |k_j| * scale for the key at `position` (from 0) beside the others: scores at a cosine of 1.

    The scale is counted in because some models (OPT) apply it to their queries beforehand. Errors as above. Source:
    Gu et al. 2025, Figures 2 and 15-18, where it is left out.
    """
    return _contrast(lengthened(call), position)


def qk_scores(call: AttentionCall, position: int = 0) -> Pair:
    """Mean |q_i| |k_j| cos(q_i, k_j) * scale for the key at `position` (from 0) beside the others; errors as above."""
    return _contrast(multiplied(call), position)


def score_gap_shares(
    angles: Float[Tensor, "*stack 2"], norm_products: Float[Tensor, "*stack 2"]
) -> Float[Tensor, "*stack 3"]:
    """[gap, angle part, norm part] of the chosen key's score over the others', in units of the score.

    gap = c_1 n_1 - c_0 n_0 for mean cosines c and mean norm products n. Each part moves one factor while the
    other stays at the mean of the two, so that the parts sum to the gap. What `qk_scores` differ by beyond the gap is
    the covariance of c and n, which belongs to neither.
    """
    (c, c_other), (n, n_other) = angles.unbind(-1), norm_products.unbind(-1)
    gap = c * n - c_other * n_other
    by_angle = (c - c_other) * (n + n_other) / 2
    by_norm = (n - n_other) * (c + c_other) / 2
    return torch.stack((gap, by_angle, by_norm), -1)


def stable_rank(x: Float[Tensor, "*stack row column"]) -> Float[Tensor, "*stack"]:
    """||X||_F^2 / ||X||_2^2 in fp32, from 1 to the rank; NaN for a matrix of zeros. Source: Fesser 2606.08105."""
    energies = torch.linalg.svdvals(x.float()).square()
    return energies.sum(-1) / energies.amax(-1)


def is_nop(value_ratio: Ratios, limit: float = 0.2) -> Mask:
    """Whether a sink writes next to nothing: ||v_s|| / mean ||v_i|| below `limit`. Source: Fesser 2606.08105.

    Raises InputError unless `limit` is a length between 0 and 1.
    """
    if not 0 < limit < 1:
        raise InputError(f"limit is a value norm relative to the others', between 0 and 1; got {limit}")
    return value_ratio < limit


def is_broadcast(value_ratio: Ratios, low: float = 0.8, high: float = 1.25) -> Mask:
    """Whether a sink's value is as long as the others': `low` <= ||v_s|| / mean ||v_i|| <= `high`. Source: as `is_nop`.

    Raises InputError unless 1 lies between `low` and `high`.
    """
    if not 0 < low <= 1 <= high:
        raise InputError(
            f"low and high are value norms relative to the others', on either side of 1; got {low}, {high}"
        )
    return (low <= value_ratio) & (value_ratio <= high)


def angled(call: AttentionCall) -> AttentionCall:
    """The call whose scores are cos(q_i, k_j) and nothing else."""
    q, k = _featured(call)
    return _bare(replace(call.with_pattern(None), q=F.normalize(q, dim=-1), k=F.normalize(k, dim=-1), scale=1.0))


def lengthened(call: AttentionCall) -> AttentionCall:
    """The call whose scores are |q_i| |k_j| * scale and nothing else."""
    q, k = _featured(call)
    return _bare(replace(call.with_pattern(None), q=q.norm(dim=-1, keepdim=True), k=k.norm(dim=-1, keepdim=True)))


def multiplied(call: AttentionCall) -> AttentionCall:
    """The call whose scores are q_i . k_j * scale and nothing else: no bias, softcap or slot."""
    q, k = _featured(call)
    return _bare(replace(call.with_pattern(None), q=q, k=k))


def _bare(call: AttentionCall) -> AttentionCall:
    return replace(call, bias=None, softcap=None, slot=None, kernel=SOFTMAX)


def _featured(call: AttentionCall) -> tuple[Queries, Keys]:
    return call.kernel.feature(call.q.float()), call.kernel.feature(call.k.float())


def _contrast(call: AttentionCall, position: int) -> Pair:
    n = call.k.shape[2]
    if not 0 <= position < n or n < 2:
        raise InputError(f"position counts from 0 to {n - 1}, among at least 2 keys; got {position} of {n}")
    chosen, seen = _over(call, call.keys[position : position + 1])
    total, count = torch.zeros_like(chosen), torch.zeros_like(seen)
    for keys in flash.key_blocks(call.keys[call.keys != position]):
        part, visible = _over(call, keys)
        total, count = total + part, count + visible
    pair = torch.stack((chosen, total / count.clamp(min=1)), -1)
    watching = (seen > 0) & (count > 0)
    return (pair * watching[..., None]).sum(2) / watching.sum(2)[..., None]


def _over(call: AttentionCall, keys: Tensor) -> tuple[Rows, Tensor]:
    allowed = call.allowed(keys)
    return call.scores(keys).masked_fill(~allowed, 0).sum(-1), allowed.sum(-1)
