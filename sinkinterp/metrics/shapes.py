"""Names for the shapes that metrics share, beside those of `attention.shapes`. A batch is sequences."""

from jaxtyping import Float
from torch import Tensor

Importance = Float[Tensor, "batch head pos"]  # of one attention layer
Alpha = Float[Tensor, "batch layer head pos"]  # importance in all attention layers
PerHead = Float[Tensor, "batch layer head"]
PerSequence = Float[Tensor, " batch"]
