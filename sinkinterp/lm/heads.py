"""What attention may do beside the call: normalise queries and keys, shift, gate and join what heads return."""

from dataclasses import dataclass

from einops import rearrange, reduce
from jaxtyping import Float
from torch import Tensor, nn

from ..attention.slots import LearnedRow, whole_row
from ..spec import Dims, Part, Spec

Residual = Float[Tensor, "batch pos d_model"]
Heads = Float[Tensor, "batch pos head d_head"]
Pair = tuple[Heads, Heads]


class QKNorm(nn.Module):
    """Queries and keys as they are, and the base of what normalises them."""

    def forward(self, q: Heads, k: Heads) -> Pair:
        return q, k


class _RMSQKNorm(QKNorm):
    def __init__(self, d_head: int, eps: float) -> None:
        super().__init__()
        self.q_norm, self.k_norm = (nn.RMSNorm(d_head, eps=eps) for _ in range(2))

    def forward(self, q: Heads, k: Heads) -> Pair:
        return self.q_norm(q), self.k_norm(k)


@dataclass(frozen=True)
class NoQKNorm(Part):
    """Queries and keys of any length."""

    def build(self, dims: Dims) -> QKNorm:
        return QKNorm()


@dataclass(frozen=True)
class RMSQKNorm(Part):
    """Queries and keys of one root mean square before rotation, with a trained gain per dimension (Qwen3)."""

    eps: float = 1e-5

    def build(self, dims: Dims) -> QKNorm:
        return _RMSQKNorm(dims.d_head, self.eps)


class Shift(nn.Module):
    """Heads' outputs as they are, and the base of what changes them, given the block's normed input `x`."""

    def forward(self, z: Heads, x: Residual) -> Heads:
        return z


class _ValueBias(Shift):
    def __init__(self, value: nn.Parameter, dims: Dims) -> None:
        super().__init__()
        self.value, self.dims = value, dims

    def forward(self, z: Heads, x: Residual) -> Heads:
        return z + whole_row(self.value, self.dims)[:, 0].to(z.dtype)


class _Gate(Shift):
    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(dims.d_model, dims.n_heads, bias=False)

    def forward(self, z: Heads, x: Residual) -> Heads:
        return z * self.gate_proj(x).sigmoid()[..., None]


@dataclass(frozen=True)
class NoChange(Part):
    """Heads' outputs as the attention call gives them."""

    def build(self, dims: Dims) -> Shift:
        return Shift()


@dataclass(frozen=True)
class ValueBias(Part):
    """y = A V + v*: a vector added to every head's output, to which nothing attends (Table 4, V biases)."""

    value: Part = LearnedRow()

    def build(self, dims: Dims) -> Shift:
        return _ValueBias(self.value.build(dims), dims)


@dataclass(frozen=True)
class HeadGate(Part):
    """Each head's output times sigmoid(w . x), x being the input of the block's attention (Qiu et al. 2025)."""

    def build(self, dims: Dims) -> Shift:
        return _Gate(dims)


@dataclass(frozen=True)
class Join(Spec):
    """How heads' outputs become the one vector that the output map reads."""

    def width(self, dims: Dims) -> int:
        """That vector's length."""
        raise NotImplementedError

    def __call__(self, z: Heads) -> Float[Tensor, "batch pos width"]:
        raise NotImplementedError


@dataclass(frozen=True)
class Concatenated(Join):
    """Heads side by side."""

    def width(self, dims: Dims) -> int:
        return dims.n_heads * dims.d_head

    def __call__(self, z: Heads) -> Float[Tensor, "batch pos width"]:
        return rearrange(z, "b pos head d -> b pos (head d)")


@dataclass(frozen=True)
class Added(Join):
    """The sum of all heads (Table 12)."""

    def width(self, dims: Dims) -> int:
        return dims.d_head

    def __call__(self, z: Heads) -> Float[Tensor, "batch pos width"]:
        return reduce(z, "b pos head d -> b pos d", "sum")
