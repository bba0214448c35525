"""Multi-head attention whose steps are values, called through transformers' attention interface.

A position scheme adds to embeddings, rotates queries and keys, or adds to scores by the distance of query and key. A
slot has no position, so it gets nothing. Before the call, queries and keys may be normalised, and values gated. After
it, head outputs may be shifted and gated, and are joined.
"""

import math
from dataclasses import replace
from typing import Any, ClassVar

import torch
from einops import rearrange, reduce
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import Cache, PreTrainedConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..attention.call import AttentionCall, call_of_interface
from ..attention.kernels import SOFTMAX, Feature, Kernel
from ..attention.masks import Causal, Mask
from ..attention.shapes import Keys, Queries, Residual, Values
from ..attention.slots import KeySlot, LearnedRow, LogitSlot, NoSlots, Row, Slot, SlotRow, whole_row
from ..checks import InputError, whole_number
from ..spec import Dims, Part, Spec, added_later

PositionIds = Int[Tensor, "#batch pos"]
KeyIds = Int[Tensor, "#batch key"]
Distance = Int[Tensor, "#batch query key"]  # from the key forward to the query; negative for later keys
Bias = Float[Tensor, "#batch #head query key"]
QueriesOrKeys = Float[Tensor, "batch head pos d_head"]


class Position:
    """No positions. Base of every scheme."""

    def embed(self, x: Residual, ids: PositionIds) -> Residual:
        """The residual stream that the first block reads."""
        return x

    def rotate(self, x: QueriesOrKeys, ids: PositionIds) -> QueriesOrKeys:
        """Queries or keys as they enter the attention call."""
        return x

    def bias(self, queries: PositionIds, keys: KeyIds) -> Bias | None:
        """What every layer adds to its scaled scores; None if nothing."""
        return None


def _distance(queries: PositionIds, keys: KeyIds) -> Distance:
    return queries[:, :, None] - keys[:, None, :]


class NoPosition(Part, Position):
    """No positional information except that of the mask."""


# waves and frequencies are computed in every pass: from_pretrained builds on the meta device and would lose a buffer


class Sinusoidal(Part, Position):
    """Fixed sines and cosines, interleaved, added to the embeddings. Positions count from 0 (equation 5)."""

    base: float = 10_000.0

    def embed(self, x: Residual, ids: PositionIds) -> Residual:
        angle = _angles(ids, x.shape[-1], self.base)
        return x + rearrange([angle.sin(), angle.cos()], "two b pos wave -> b pos (wave two)").to(x.dtype)


class Rotary(Part, Position):
    """Rotates queries and keys by their position, the halves of a head paired as in Llama (RoPE)."""

    base: float = 10_000.0

    def rotate(self, x: QueriesOrKeys, ids: PositionIds) -> QueriesOrKeys:
        angle = _angles(ids, x.shape[-1], self.base)
        cos, sin = (f(angle).repeat(1, 1, 2)[:, None].to(x.dtype) for f in (torch.cos, torch.sin))
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin


def _angles(ids: PositionIds, width: int, base: float) -> Float[Tensor, "#batch pos wave"]:
    frequency = base ** (-torch.arange(0, width, 2, device=ids.device, dtype=torch.float) / width)
    return ids[..., None].float() * frequency


class Learned(Part):
    """A trained vector per position, added to the embeddings (GPT-2)."""

    def build(self, dims: Dims) -> Position:
        return _Table(dims.n_ctx, dims.d_model)


class _Table(nn.Module, Position):
    def __init__(self, n_ctx: int, d_model: int) -> None:
        super().__init__()
        self.table = nn.Embedding(n_ctx, d_model)

    def embed(self, x: Residual, ids: PositionIds) -> Residual:
        return x + self.table(ids)


def buckets(distance: Int[Tensor, "*axes"], count: int, reach: int) -> Int[Tensor, "*axes"]:
    """T5's causal buckets: one per step in the first half, log-spaced up to `reach` in the second (equation 6)."""
    distance, near = distance.clamp(min=0), count // 2
    far = near + (distance.clamp(min=near) / near).log() / math.log(reach / near) * (count - near)
    return torch.where(distance < near, distance, far.long().clamp(max=count - 1))


class _Buckets(Part):
    """`count` buckets of distances, up to `reach`."""

    count: int = 32
    reach: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number(self.count, "the count of buckets, below twice the reach,", 2, 2 * self.reach - 1)

    def of(self, queries: PositionIds, keys: KeyIds) -> Distance:
        """The bucket of every pair."""
        return buckets(_distance(queries, keys), self.count, self.reach)


class T5Relative(_Buckets):
    """A trained scalar per bucket of distances and per head. All layers share one table (T5)."""

    def build(self, dims: Dims) -> Position:
        return _BucketTable(self, dims.n_heads)


class _BucketTable(nn.Module, Position):
    def __init__(self, spec: T5Relative, n_heads: int) -> None:
        super().__init__()
        self.spec, self.table = spec, nn.Embedding(spec.count, n_heads)

    def bias(self, queries: PositionIds, keys: KeyIds) -> Bias:
        return self.table(self.spec.of(queries, keys)).movedim(-1, 1).float()


class BucketIndex(_Buckets, Position):
    """The index of the bucket, not trained: the paper's equation 6. The release runs it as relative positions.

    It grows with distance, so it favours the first key: with equal scores otherwise, alpha_1 is 0.334 at T = 64.
    """

    def bias(self, queries: PositionIds, keys: KeyIds) -> Bias:
        return self.of(queries, keys)[:, None].float()


def slopes(n_heads: int) -> list[float]:
    """ALiBi's slope for every head: 2^(-8h/H) if the number of heads H is a power of two (equation 7).

    Otherwise: the slopes for the next smaller power of two, then every other slope for twice that power.
    """
    power = 2 ** math.floor(math.log2(n_heads))
    geometric = [2 ** (-8 * h / power) for h in range(1, power + 1)]
    return geometric if power == n_heads else geometric + slopes(2 * power)[::2][: n_heads - power]


class Alibi(Part):
    """-slope * distance, with a fixed slope per head."""

    def build(self, dims: Dims) -> Position:
        return _Alibi(dims.n_heads)


class _Alibi(Position):
    def __init__(self, n_heads: int) -> None:
        self.slopes = slopes(n_heads)

    def bias(self, queries: PositionIds, keys: KeyIds) -> Bias:
        far = _distance(queries, keys).abs()[:, None].float()  # a prefix mask also shows later keys
        return -torch.tensor(self.slopes, device=far.device)[:, None, None] * far


Scheme = NoPosition | Sinusoidal | Learned | Rotary | T5Relative | BucketIndex | Alibi
HeadVectors = Float[Tensor, "batch pos head d_head"]  # the order of axes outside the call, as in transformers
MapVectors = Float[Tensor, "batch pos map d_value"]  # as `HeadVectors`, of the maps that share values


class NoQKNorm(Part):
    """Queries and keys of any length."""

    def __call__(self, q: HeadVectors, k: HeadVectors) -> tuple[HeadVectors, HeadVectors]:
        return q, k


class RMSQKNorm(Part):
    """Queries and keys get the same root mean square before rotation, with a trained gain per dimension (Qwen3)."""

    eps: float = 1e-5

    def build(self, dims: Dims) -> nn.Module:
        return _RMSQKNorm(dims.d_head, self.eps)


class _RMSQKNorm(nn.Module):
    def __init__(self, d_head: int, eps: float) -> None:
        super().__init__()
        self.q_norm, self.k_norm = (nn.RMSNorm(d_head, eps=eps) for _ in range(2))

    def forward(self, q: HeadVectors, k: HeadVectors) -> tuple[HeadVectors, HeadVectors]:
        return self.q_norm(q), self.k_norm(k)


class NoChange(Part):
    """Head outputs `z` as the attention call gives them; `x` is the normed input of the attention."""

    def __call__(self, z: HeadVectors, x: Residual) -> HeadVectors:
        return z


class ValueBias(Part):
    """y = A V + v*: adds a vector to the output of every head; no query attends to it (Table 4, V biases)."""

    value: Row = LearnedRow()

    def build(self, dims: Dims) -> nn.Module:
        return _ValueBias(self.value.build(dims), dims)


class _ValueBias(nn.Module):
    def __init__(self, value: nn.Parameter, dims: Dims) -> None:
        super().__init__()
        self.value, self.dims = value, dims

    def forward(self, z: HeadVectors, x: Residual) -> HeadVectors:
        return z + whole_row(self.value, self.dims)[:, 0].to(z.dtype)


class GateMap(nn.Linear):
    """The values of a gate, between 0 and 1: the sigmoid of a linear map. It is a module so that hooks can read it."""

    def forward(self, x: Residual) -> Float[Tensor, "batch pos gate"]:
        return super().forward(x).sigmoid()


class _Gate(nn.Module):
    def __init__(self, dims: Dims, per_head: int) -> None:
        super().__init__()
        self.gate_proj = GateMap(dims.d_model, dims.n_heads * per_head, bias=False)

    def forward(self, z: HeadVectors, x: Residual) -> HeadVectors:
        return z * self.gate_proj(x).unflatten(-1, (z.shape[2], -1))


class HeadGate(Part):
    """Multiplies each head's output by sigmoid(w . x), where x is the attention's normed input (Qiu et al. 2025)."""

    def build(self, dims: Dims) -> nn.Module:
        return _Gate(dims, 1)


class ElementGate(Part):
    """As `HeadGate`, with a gate for every dimension of every head."""

    def build(self, dims: Dims) -> nn.Module:
        return _Gate(dims, dims.d_head)


class OneMap(Part):
    """Every head has its own map and values."""

    maps: ClassVar[int] = 1

    def share(self, v: HeadVectors) -> MapVectors:
        """The values of every map, given those of every head."""
        return v

    def __call__(self, z: MapVectors) -> Float[Tensor, "batch pos head d_value"]:
        """The outputs of heads, given the outputs of their maps."""
        return z


class _Differential(nn.Module):
    def __init__(self, dims: Dims, start: float) -> None:
        super().__init__()
        self.start = start
        self.plus, self.minus = (nn.Parameter(0.1 * torch.randn(2, dims.d_head)) for _ in range(2))
        self.norm = nn.RMSNorm(2 * dims.d_head, eps=1e-5)

    def share(self, v: HeadVectors) -> MapVectors:
        pairs = rearrange(v, "b pos (pair two) d -> b pos pair (two d)", two=2)
        return pairs.repeat_interleave(2, 2)

    def forward(self, z: MapVectors) -> Float[Tensor, "batch pos head d_value"]:
        factor = self.plus.prod(0).sum().exp() - self.minus.prod(0).sum().exp() + self.start
        return self.norm(z[:, :, ::2] - factor.to(z.dtype) * z[:, :, 1::2]) * (1 - self.start)


class Differential(Part):
    """Differential attention (Ye et al. 2024, arXiv:2410.05258): two maps share values, and the second is subtracted.

    Heads 2i and 2i + 1 are the maps of head i, whose values have twice the length. The head returns
    (1 - start) norm((A_1 - factor A_2) V); factor is trained, begins near `start`, and is one for all heads of a layer.
    """

    start: float = 0.8
    maps: ClassVar[int] = 2

    def build(self, dims: Dims) -> nn.Module:
        if dims.n_heads % 2:
            raise InputError(f"differential attention takes heads in pairs; got {dims.n_heads}")
        return _Differential(dims, self.start)


class Join(Spec):
    """How the head outputs become the one vector that the output projection reads."""

    def width(self, dims: Dims) -> int:
        """The length of that vector."""
        raise NotImplementedError

    def __call__(self, z: HeadVectors) -> Float[Tensor, "batch pos width"]:
        raise NotImplementedError


class Concatenated(Join):
    """Head outputs side by side."""

    def width(self, dims: Dims) -> int:
        return dims.n_heads * dims.d_head

    def __call__(self, z: HeadVectors) -> Float[Tensor, "batch pos width"]:
        return rearrange(z, "b pos head d -> b pos (head d)")


class Added(Join):
    """The sum over heads (Table 12)."""

    def width(self, dims: Dims) -> int:
        return dims.d_head

    def __call__(self, z: HeadVectors) -> Float[Tensor, "batch pos width"]:
        return reduce(z, "b pos head d -> b pos d", "sum")


class AttentionSpec(Spec):
    """Softmax attention over the past by default. Every field replaces one step.

    Before the attention call, v_gate scales values, as a gate scales outputs. After it, maps makes one output of the
    maps of each head, v_bias shifts it, gate scales it, and join makes one vector of all.
    """

    kernel: Kernel = SOFTMAX
    mask: Mask = Causal()
    slots: NoSlots | KeySlot | LogitSlot = NoSlots()
    qk_norm: NoQKNorm | RMSQKNorm = NoQKNorm()
    v_bias: NoChange | ValueBias = NoChange()
    gate: NoChange | HeadGate | ElementGate = NoChange()
    join: Join = Concatenated()
    v_gate: NoChange | HeadGate | ElementGate = added_later(NoChange())
    maps: OneMap | Differential = added_later(OneMap())

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.maps != OneMap() and isinstance(self.slots, KeySlot):
            raise InputError("a key slot's value is shorter than those of differential attention; take LogitSlot()")


def eager_attention_forward(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, scaling: float, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """The family's own attention function. It is fused or blockwise where possible, unless a pattern is asked for."""
    call = call_of_interface(module.layer_idx, query, key, value, attention_mask, scaling, **kwargs)
    shows = kwargs.get("output_attentions") or module.config.output_attentions
    pattern = call.pattern() if shows else None
    z = call.output() if pattern is None else call.mix(pattern)
    return z.transpose(1, 2), pattern


class SinkAttention(nn.Module):
    """Reads the residual stream and writes the values that the heads mix."""

    is_causal = True

    def __init__(self, config: PreTrainedConfig, spec: AttentionSpec, dims: Dims, layer_idx: int) -> None:
        super().__init__()
        width = dims.n_heads * dims.d_head
        self.config, self.layer_idx = config, layer_idx
        self.d_head, self.scaling = dims.d_head, dims.d_head**-0.5
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(dims.d_model, width, bias=False) for _ in range(3))
        n_maps = spec.maps.maps
        heads = replace(dims, n_heads=dims.n_heads // n_maps, d_head=n_maps * dims.d_head)
        self.o_proj = nn.Linear(spec.join.width(heads), dims.d_model, bias=False)
        assert isinstance(spec.kernel.feature, Feature)
        self.feature: Feature | nn.Module = spec.kernel.feature.build(dims)
        self.slots, self.qk_norm = spec.slots.build(dims), spec.qk_norm.build(dims)
        self.v_gate: Any = spec.v_gate.build(dims)
        self.maps: Any = spec.maps.build(dims)
        self.v_bias, self.gate = spec.v_bias.build(heads), spec.gate.build(heads)
        self.kernel, self.join = spec.kernel, spec.join

    def forward(
        self,
        hidden_states: Residual,
        position: Position,
        position_ids: PositionIds,
        attention_mask: Bool[Tensor, "#batch 1 pos key"] | None = None,
        past_key_values: Cache | None = None,
        slot: Slot = None,
        **kwargs: Any,
    ) -> tuple[Residual, Tensor | None]:
        """The residual update, and the pattern if `output_attentions` asks for it. `slot` replaces the layer's slot."""
        q, k, v = self._project(hidden_states, position, position_ids)
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, self.layer_idx)
        kwargs |= {"kernel": self._built_kernel, "slot": self.slots() if slot is None else slot}
        kind = self.config._attn_implementation
        attention_interface = ALL_ATTENTION_FUNCTIONS.get_interface(kind, eager_attention_forward)
        z, pattern = attention_interface(self, q, k, v, attention_mask, dropout=0.0, scaling=self.scaling, **kwargs)
        return self._write(z, hidden_states), pattern

    def as_slot(self, x: Residual, position: Position, ids: PositionIds) -> tuple[SlotRow, Residual]:
        """A slot of this layer, made from a single token that sees only itself, and the token's residual update."""
        q, k, v = self._project(x, position, ids)
        bias = position.bias(ids, ids)
        call = AttentionCall(self.layer_idx, q, k, v, self.scaling, bias=bias, kernel=self._built_kernel)
        return SlotRow(self.feature(k)[0], v[0]), self._write(call.output().transpose(1, 2), x)

    @property
    def _built_kernel(self) -> Kernel:
        return replace(self.kernel, feature=self.feature)

    def _project(self, x: Residual, position: Position, ids: PositionIds) -> tuple[Queries, Keys, Values]:
        maps = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (rearrange(project(x), "b pos (head d) -> b pos head d", d=self.d_head) for project in maps)
        q, k, v = (t.transpose(1, 2) for t in (*self.qk_norm(q, k), self.maps.share(self.v_gate(v, x))))
        return position.rotate(q, ids), position.rotate(k, ids), v

    def _write(self, z: HeadVectors, x: Residual) -> Residual:
        return self.o_proj(self.join(self.gate(self.v_bias(self.maps(z), x), x)))
