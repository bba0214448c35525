"""Feature maps phi: applied to queries and keys alike, after any rotation (Gu et al. 2025, section 7.2)."""

from dataclasses import dataclass

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..spec import Dims, Part

Vectors = Float[Tensor, "batch some_head pos d_head"]


@dataclass(frozen=True)
class Feature(Part):
    """A map of vectors. Without parameters it builds itself, else a module for each layer, shared by all heads."""

    def __call__(self, x: Vectors) -> Vectors:
        raise NotImplementedError(f"{type(self).__name__} has parameters: call what it builds")

    def build(self, dims: Dims) -> "Feature | nn.Module":
        return self


@dataclass(frozen=True)
class Identity(Feature):
    """Queries and keys as they are."""

    def __call__(self, x: Vectors) -> Vectors:
        return x


@dataclass(frozen=True)
class EluFeature(Feature):
    """elu(x) + 1, which is positive."""

    def __call__(self, x: Vectors) -> Vectors:
        return F.elu(x) + 1


@dataclass(frozen=True)
class MLPFeature(Feature):
    """Two square linear maps without biases and a ReLU between them, the same for queries and keys."""

    def build(self, dims: Dims) -> nn.Module:
        return _MLP(dims.d_head)


class _MLP(nn.Module):
    def __init__(self, d_head: int) -> None:
        super().__init__()
        self.up, self.down = (nn.Linear(d_head, d_head, bias=False) for _ in range(2))

    def forward(self, x: Vectors) -> Vectors:
        """The mapped vectors, in the precision of `x`; attention calls pass fp32."""
        return F.linear(F.linear(x, self.up.weight.to(x.dtype)).relu(), self.down.weight.to(x.dtype))
