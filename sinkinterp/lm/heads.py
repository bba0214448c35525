"""What attention may do before and after the call: normalise queries and keys; shift, gate and join head outputs."""

from dataclasses import dataclass

from einops import rearrange, reduce
from jaxtyping import Float
from torch import Tensor, nn

from ..attention.shapes import Residual
from ..attention.slots import LearnedRow, whole_row
from ..spec import Dims, Part, Spec

PerHead = Float[Tensor, "batch pos head d_head"]  # the order of axes outside the call, as in transformers


class QKNorm(nn.Module):
    """Queries and keys unchanged. Base of the modules that normalise them."""

    def forward(self, q: PerHead, k: PerHead) -> tuple[PerHead, PerHead]:
        return q, k


class _RMSQKNorm(QKNorm):
    def __init__(self, d_head: int, eps: float) -> None:
        super().__init__()
        self.q_norm, self.k_norm = (nn.RMSNorm(d_head, eps=eps) for _ in range(2))

    def forward(self, q: PerHead, k: PerHead) -> tuple[PerHead, PerHead]:
        return self.q_norm(q), self.k_norm(k)


@dataclass(frozen=True)
class NoQKNorm(Part):
    """Queries and keys of any length."""

    def build(self, dims: Dims) -> QKNorm:
        return QKNorm()


@dataclass(frozen=True)
class RMSQKNorm(Part):
    """Queries and keys get the same root mean square before rotation, with a trained gain per dimension (Qwen3)."""

    eps: float = 1e-5

    def build(self, dims: Dims) -> QKNorm:
        return _RMSQKNorm(dims.d_head, self.eps)


class OutputChange(nn.Module):
    """Head outputs `z` unchanged. Base of the modules that change them; `x` is the normed input of the attention."""

    def forward(self, z: PerHead, x: Residual) -> PerHead:
        return z


class _ValueBias(OutputChange):
    def __init__(self, value: nn.Parameter, dims: Dims) -> None:
        super().__init__()
        self.value, self.dims = value, dims

    def forward(self, z: PerHead, x: Residual) -> PerHead:
        return z + whole_row(self.value, self.dims)[:, 0].to(z.dtype)


class _Gate(OutputChange):
    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(dims.d_model, dims.n_heads, bias=False)

    def forward(self, z: PerHead, x: Residual) -> PerHead:
        return z * self.gate_proj(x).sigmoid()[..., None]


@dataclass(frozen=True)
class NoChange(Part):
    """Head outputs as the attention call gives them."""

    def build(self, dims: Dims) -> OutputChange:
        return OutputChange()


@dataclass(frozen=True)
class ValueBias(Part):
    """y = A V + v*: adds a vector to the output of every head; no query attends to it (Table 4, V biases)."""

    value: Part = LearnedRow()

    def build(self, dims: Dims) -> OutputChange:
        return _ValueBias(self.value.build(dims), dims)


@dataclass(frozen=True)
class HeadGate(Part):
    """Multiplies each head's output by sigmoid(w . x), where x is the attention's normed input (Qiu et al. 2025)."""

    def build(self, dims: Dims) -> OutputChange:
        return _Gate(dims)


@dataclass(frozen=True)
class Join(Spec):
    """How the head outputs become the one vector that the output projection reads."""

    def width(self, dims: Dims) -> int:
        """The length of that vector."""
        raise NotImplementedError

    def __call__(self, z: PerHead) -> Float[Tensor, "batch pos width"]:
        raise NotImplementedError


@dataclass(frozen=True)
class Concatenated(Join):
    """Head outputs side by side."""

    def width(self, dims: Dims) -> int:
        return dims.n_heads * dims.d_head

    def __call__(self, z: PerHead) -> Float[Tensor, "batch pos width"]:
        return rearrange(z, "b pos head d -> b pos (head d)")


@dataclass(frozen=True)
class Added(Join):
    """The sum over heads (Table 12)."""

    def width(self, dims: Dims) -> int:
        return dims.d_head

    def __call__(self, z: PerHead) -> Float[Tensor, "batch pos width"]:
        return reduce(z, "b pos head d -> b pos d", "sum")
