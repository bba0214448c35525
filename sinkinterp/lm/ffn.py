"""Feed-forward layers: an activation, gated or not, without biases."""

from dataclasses import dataclass

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..attention.shapes import Residual
from ..checks import whole_number
from ..spec import Dims, Part, Spec

Hidden = Float[Tensor, "batch pos width"]


@dataclass(frozen=True)
class Activation(Spec):
    """An elementwise function."""

    def __call__(self, x: Hidden) -> Hidden:
        raise NotImplementedError


@dataclass(frozen=True)
class Relu(Activation):
    """max(x, 0)."""

    def __call__(self, x: Hidden) -> Hidden:
        return F.relu(x)


@dataclass(frozen=True)
class Gelu(Activation):
    """x * Phi(x), where Phi is the exact normal distribution function."""

    def __call__(self, x: Hidden) -> Hidden:
        return F.gelu(x)


@dataclass(frozen=True)
class Swish(Activation):
    """x * sigmoid(x)."""

    def __call__(self, x: Hidden) -> Hidden:
        return F.silu(x)


@dataclass(frozen=True)
class _OfWidth(Part):
    """A feed-forward layer with `width` hidden units."""

    width: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number(self.width, "width", 1)


@dataclass(frozen=True)
class FFN(_OfWidth):
    """down(act(up x))."""

    act: Activation = Relu()

    def build(self, dims: Dims) -> nn.Module:
        return Layer(dims.d_model, self)


@dataclass(frozen=True)
class GatedFFN(_OfWidth):
    """down(act(gate x) * up x): SwiGLU by default, as in Llama."""

    act: Activation = Swish()

    def build(self, dims: Dims) -> nn.Module:
        return GatedLayer(dims.d_model, self)


class _Layer(nn.Module):
    """A feed-forward layer: an output projection of its neurons."""

    down_proj: nn.Linear

    def neurons(self, x: Residual) -> Hidden:
        """Returns what the activation returns, times the gate where there is one: `batch pos neuron`."""
        raise NotImplementedError

    def forward(self, x: Residual) -> Residual:
        return self.down_proj(self.neurons(x))

    def without_hooks(self, x: Residual) -> Residual:
        """The same for what is not a token of the sequence, so that no hook sees it."""
        return type(self.down_proj).forward(self.down_proj, self.neurons(x))


class Layer(_Layer):
    """The module of `FFN`. Its projections have Llama's names."""

    def __init__(self, d_model: int, spec: FFN) -> None:
        super().__init__()
        self.act = spec.act
        self.up_proj = nn.Linear(d_model, spec.width, bias=False)
        self.down_proj = nn.Linear(spec.width, d_model, bias=False)

    def neurons(self, x: Residual) -> Hidden:
        return self.act(self.up_proj(x))


class SwishDown(nn.Linear):
    """The down projection of a SwiGLU layer, a class of its own because `WrittenInit` draws it differently."""


class GatedLayer(_Layer):
    """The module of `GatedFFN`."""

    def __init__(self, d_model: int, spec: GatedFFN) -> None:
        super().__init__()
        self.act = spec.act
        self.gate_proj = nn.Linear(d_model, spec.width, bias=False)
        self.up_proj = nn.Linear(d_model, spec.width, bias=False)
        down = SwishDown if spec.act == Swish() else nn.Linear
        self.down_proj = down(spec.width, d_model, bias=False)

    def neurons(self, x: Residual) -> Hidden:
        return self.act(self.gate_proj(x)) * self.up_proj(x)
