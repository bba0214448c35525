"""What a head writes: next to nothing, or one vector to all positions (Fesser, arXiv 2606.08105)."""

from jaxtyping import Bool, Float
from torch import Tensor

from ..attention.call import AttentionCall
from ..errors import InputError
from .eigenvalues import largest_eigenvalue
from .metric import CallMetric


def stable_rank(x: Float[Tensor, "*stack row column"]) -> Float[Tensor, "*stack"]:
    """||X||_F^2 / ||X||_2^2 in fp32, from 1 to the rank; NaN for a matrix of zeros."""
    x = x.float()
    gram = x.mT @ x if x.shape[-1] <= x.shape[-2] else x @ x.mT
    energy = gram.diagonal(dim1=-2, dim2=-1).sum(-1)
    shares = gram / energy[..., None, None]  # eigenvalues sum to 1
    return 1 / largest_eigenvalue(shares.reshape(energy.numel(), *gram.shape[-2:])).reshape(energy.shape)


def key_rank(call: AttentionCall) -> Float[Tensor, "batch kv_head"]:
    """Stable rank of the keys; 1 where all have one direction."""
    return stable_rank(call.k)


def update_rank(call: AttentionCall) -> Float[Tensor, "batch head"]:
    """Stable rank of what the heads return; 1 where they write one direction to all positions."""
    return stable_rank(call.output())


def is_nop(value_ratio: Float[Tensor, "*stack"], limit: float = 0.2) -> Bool[Tensor, "*stack"]:
    """Whether a sink writes next to nothing: ||v_s|| / mean ||v_i|| below `limit`.

    Raises InputError unless `limit` is a length between 0 and 1.
    """
    if not 0 < limit < 1:
        raise InputError(f"limit is a value norm relative to the others', between 0 and 1; got {limit}")
    return value_ratio < limit


def is_broadcast(value_ratio: Float[Tensor, "*stack"], low: float = 0.8, high: float = 1.25) -> Bool[Tensor, "*stack"]:
    """Whether a sink's value is as long as the others': `low` <= ||v_s|| / mean ||v_i|| <= `high`.

    Raises InputError unless 1 lies between `low` and `high`.
    """
    if not 0 < low <= 1 <= high:
        raise InputError(
            f"low and high are value norms relative to the others', on either side of 1; got {low}, {high}"
        )
    return (low <= value_ratio) & (value_ratio <= high)


KEY_RANK = CallMetric("key_rank", key_rank)
UPDATE_RANK = CallMetric("update_rank", update_rank)
METRICS = (KEY_RANK, UPDATE_RANK)
