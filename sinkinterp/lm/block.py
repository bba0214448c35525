"""A block: attention, then a feed-forward layer, each in a residual branch with a norm at its start or its end."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedConfig

from ..attention import Residual, Slot, SlotRow
from ..spec import Dims, Limits, Part, Spec
from .attention import Position, PositionIds, SinkAttention

Hidden = Float[Tensor, "batch pos width"]


class Activation(Spec):
    """An elementwise function."""

    function: ClassVar[Any]

    def __call__(self, x: Hidden) -> Hidden:
        return self.function(x)


class Relu(Activation):
    """max(x, 0)."""

    function = staticmethod(F.relu)


class Gelu(Activation):
    """x * Phi(x), where Phi is the exact normal distribution function."""

    function = staticmethod(F.gelu)


class Swish(Activation):
    """x * sigmoid(x)."""

    function = staticmethod(F.silu)


class _OfWidth(Part):
    """A feed-forward layer with `width` hidden units."""

    limits: ClassVar[Limits] = {"width": 1}

    is_gated: ClassVar[bool] = False

    width: int = 256
    act: Activation = Relu()

    def build(self, dims: Dims) -> nn.Module:
        return Layer(dims.d_model, self)


class FFN(_OfWidth):
    """down(act(up x))."""


class GatedFFN(_OfWidth):
    """down(act(gate x) * up x): SwiGLU by default, as in Llama."""

    is_gated: ClassVar[bool] = True

    act: Activation = Swish()


class SwishDown(nn.Linear):
    """The down projection of a SwiGLU layer, a class of its own because `WrittenInit` draws it differently."""


class Layer(nn.Module):
    """The module of a feed-forward layer: an output projection of its neurons. Its projections have Llama's names."""

    def __init__(self, d_model: int, spec: _OfWidth) -> None:
        super().__init__()
        self.act = spec.act
        self.gate_proj = nn.Linear(d_model, spec.width, bias=False) if spec.is_gated else None
        self.up_proj = nn.Linear(d_model, spec.width, bias=False)
        down = SwishDown if spec.is_gated and spec.act == Swish() else nn.Linear
        self.down_proj = down(spec.width, d_model, bias=False)

    def neurons(self, x: Residual) -> Hidden:
        """Returns what the activation returns, times the gate where there is one: `batch pos neuron`."""
        if self.gate_proj is None:
            return self.act(self.up_proj(x))
        return self.act(self.gate_proj(x)) * self.up_proj(x)

    def forward(self, x: Residual) -> Residual:
        return self.down_proj(self.neurons(x))

    def without_hooks(self, x: Residual) -> Residual:
        """The same for what is not a token of the sequence, so that no hook sees it."""
        return type(self.down_proj).forward(self.down_proj, self.neurons(x))


class NormPlacement(Spec):
    """The place of the norm of a residual branch: its input, its update, or the stream after it."""

    on: ClassVar[str]

    def enter(self, x: Residual, norm: nn.Module) -> Residual:
        """The input of the branch, from the residual stream."""
        return norm(x) if self.on == "input" else x

    def leave(self, x: Residual, update: Residual, norm: nn.Module) -> Residual:
        """The residual stream after the branch has written `update`."""
        x = x + (norm(update) if self.on == "update" else update)
        return norm(x) if self.on == "stream" else x

    def final(self, norm: nn.Module) -> nn.Module:
        """The module between the last block and the unembedding."""
        return nn.Identity() if self.on == "stream" else norm


class PreNorm(NormPlacement):
    """x + f(norm(x)), and a norm before the unembedding."""

    on = "input"


class PostNorm(NormPlacement):
    """norm(x + f(x)), and no norm before the unembedding, as in the release (equation 3)."""

    on = "stream"


class UpdateNorm(NormPlacement):
    """x + norm(f(x)), and a norm before the unembedding, as in OLMo 2."""

    on = "update"


class SinkBlock(nn.Module):
    """One block of the stack. Norms have Llama's names, at the start and at the end of a branch."""

    gradient_checkpointing = False  # transformers sets it, and the function that `__call__` uses
    _gradient_checkpointing_func: Callable[..., Tensor]

    def __init__(self, config: PreTrainedConfig, layer_idx: int) -> None:
        super().__init__()
        spec = config.lm
        self.norm_placement = spec.branch
        self.input_layernorm = nn.RMSNorm(spec.d_model, eps=spec.norm_eps)
        self.self_attn = SinkAttention(config, spec.attention, spec.dims, layer_idx)
        self.post_attention_layernorm = nn.RMSNorm(spec.d_model, eps=spec.norm_eps)
        self.mlp = spec.ffn.build(spec.dims)

    def __call__(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:
        """As of every module. In training with gradient checkpointing the backward pass computes it again, uncached."""
        if not (self.gradient_checkpointing and self.training):
            return super().__call__(hidden_states, **kwargs)
        again = partial(super().__call__, **(kwargs | {"past_key_values": None}))
        return self._gradient_checkpointing_func(again, hidden_states)

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:
        """The residual stream after the block. `kwargs` go to the attention."""
        x = self.norm_placement.enter(hidden_states, self.input_layernorm)
        return self._finish(hidden_states, self.self_attn(x, **kwargs)[0], self.mlp)

    def as_slot(self, x: Residual, position: Position, ids: PositionIds) -> tuple[SlotRow, Residual]:
        """A slot of this layer, made from a single token that sees only itself, and the token after the block."""
        slot, update = self.self_attn.as_slot(self.norm_placement.enter(x, self.input_layernorm), position, ids)
        return slot, self._finish(x, update, self.mlp.without_hooks)

    def _finish(self, x: Residual, update: Residual, mlp: Callable[[Residual], Residual]) -> Residual:
        x = self.norm_placement.leave(x, update, self.input_layernorm)
        update = mlp(self.norm_placement.enter(x, self.post_attention_layernorm))
        return self.norm_placement.leave(x, update, self.post_attention_layernorm)


class Nothing(Part):
    """The text begins with its first token."""

    count: ClassVar[int] = 0

    def slots(self, blocks: Iterable[Any], position: Position) -> list[Slot]:
        """The slot of each block; None where a block gets none."""
        return [None for _ in blocks]


class SinkToken(Part):
    """A trained vector before the first token, drawn from N(0, std^2).

    It is the slot of every layer. So a bias by distance (ALiBi, T5's, buckets) does not reach it.
    """

    std: float = 0.02
    count: ClassVar[int] = 1

    def build(self, dims: Dims) -> nn.Module:
        return _SinkToken(dims.d_model, self.std)


class _SinkToken(nn.Module):
    def __init__(self, d_model: int, std: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, 1, d_model) * std)

    def slots(self, blocks: Iterable[Any], position: Position) -> list[Slot]:
        return [slot for slot, _ in self._through(blocks, position)]

    def stream(self, blocks: Iterable[Any], position: Position) -> Float[Tensor, "block d_model"]:
        """Its residual stream after each block."""
        return torch.cat([x[0] for _, x in self._through(blocks, position)])

    def _through(self, blocks: Iterable[Any], position: Position) -> Iterator[tuple[Slot, Residual]]:
        """Its slot in each block, and its residual stream after the block."""
        ids = torch.zeros(1, 1, dtype=torch.long, device=self.weight.device)
        x = position.embed(self.weight, ids)
        for block in blocks:
            slot, x = block.as_slot(x, position, ids)
            yield slot, x
