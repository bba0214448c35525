"""Feed-forward layers."""

from dataclasses import dataclass

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..spec import Dims, Part

Residual = Float[Tensor, "batch pos d_model"]


@dataclass(frozen=True)
class SwiGLU(Part):
    """down(silu(gate x) * up x), without biases."""

    width: int = 256

    def build(self, dims: Dims) -> nn.Module:
        return _SwiGLU(dims.d_model, self.width)


class _SwiGLU(nn.Module):
    def __init__(self, d_model: int, width: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(d_model, width, bias=False)
        self.up_proj = nn.Linear(d_model, width, bias=False)
        self.down_proj = nn.Linear(width, d_model, bias=False)

    def forward(self, x: Residual) -> Residual:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
