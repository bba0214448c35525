"""Tells if a head writes next to nothing, or one vector to all positions (Fesser, arXiv 2606.08105)."""

from jaxtyping import Bool, Float
from torch import Tensor

from ..attention import CALL, OUTPUT
from .metric import Metric
from .spectrum import stable_rank


def is_nop(value_ratio: Float[Tensor, "*stack"]) -> Bool[Tensor, "*stack"]:
    """Whether a sink writes next to nothing: ||v_s|| / mean ||v_i|| below 0.2."""
    return value_ratio < 0.2


def is_broadcast(value_ratio: Float[Tensor, "*stack"]) -> Bool[Tensor, "*stack"]:
    """Whether a sink's value is as long as the others': 0.8 <= ||v_s|| / mean ||v_i|| <= 1.25."""
    return (value_ratio >= 0.8) & (value_ratio <= 1.25)


KEY_RANK = Metric("key_rank", CALL, lambda call: stable_rank(call.k))  # 1 where all keys have one direction
UPDATE_RANK = Metric("update_rank", OUTPUT, stable_rank)  # 1 where a head writes one direction to all positions
METRICS = (KEY_RANK, UPDATE_RANK)
