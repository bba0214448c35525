"""Secondary sinks: later tokens whose residual points the way of the first token's (Wong et al., arXiv 2512.22213)."""

from jaxtyping import Bool, Float
from torch import Tensor

from ..attention.shapes import Residual
from ..errors import InputError
from .metric import ResidualMetric
from .norms import vector_norms

_TINY = 1e-8  # shorter vectors count as this long


def cosine_to_first(x: Residual) -> Float[Tensor, "batch pos"]:
    """Cosine of every token's residual with the first token's; 0 for a vector of zeros."""
    x = x.float()
    lengths = vector_norms(x).clamp(min=_TINY)
    products = (x @ x[:, 0, :, None])[..., 0]
    return products / lengths / lengths[:, :1]


def secondary_sinks(
    cosines: Float[Tensor, "batch block pos"], step_up: int, step_down: int, cosine: float = 0.9
) -> Bool[Tensor, "batch pos"]:
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


COSINE_TO_FIRST = ResidualMetric("cosine_to_first", cosine_to_first)
METRICS = (COSINE_TO_FIRST,)
