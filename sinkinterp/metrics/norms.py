"""Norms of residuals, keys and values, and how far the first token's stand out (Gu et al. 2025, section 3.1)."""

from jaxtyping import Float
from torch import Tensor

Vectors = Float[Tensor, "*stack d"]
Norms = Float[Tensor, "*stack"]


def norms(x: Vectors) -> Norms:
    """Euclidean norm of every vector, summed in fp32."""
    return x.float().norm(dim=-1)


def norm_ratio(values: Float[Tensor, "sequence *stack pos"], position: int = 0) -> Float[Tensor, "sequence *stack"]:
    """||x_position|| over the mean norm of the other positions, per sequence."""
    chosen = values[..., position]
    return chosen * (values.shape[-1] - 1) / (values.sum(-1) - chosen)
