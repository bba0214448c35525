"""A block: attention, then a feed-forward layer, each in a residual branch with a norm at its start or its end."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import PreTrainedConfig

from ..attention.shapes import Residual
from ..attention.slots import SlotRow
from ..spec import Spec
from .attention import SinkAttention
from .position_schemes import Position, PositionIds


@dataclass(frozen=True)
class NormPlacement(Spec):
    """Where a residual branch has its norm: at its start or at its end."""

    def enter(self, x: Residual, norm: nn.Module) -> Residual:
        """The input of the branch, from the residual stream."""
        raise NotImplementedError

    def leave(self, x: Residual, update: Residual, norm: nn.Module) -> Residual:
        """The residual stream after the branch has written `update`."""
        raise NotImplementedError

    def final(self, norm: nn.Module) -> nn.Module:
        """The module between the last block and the unembedding."""
        raise NotImplementedError


@dataclass(frozen=True)
class PreNorm(NormPlacement):
    """x + f(norm(x)), and a norm before the unembedding."""

    def enter(self, x: Residual, norm: nn.Module) -> Residual:
        return norm(x)

    def leave(self, x: Residual, update: Residual, norm: nn.Module) -> Residual:
        return x + update

    def final(self, norm: nn.Module) -> nn.Module:
        return norm


@dataclass(frozen=True)
class PostNorm(NormPlacement):
    """norm(x + f(x)), and no norm before the unembedding, as in the release (equation 3)."""

    def enter(self, x: Residual, norm: nn.Module) -> Residual:
        return x

    def leave(self, x: Residual, update: Residual, norm: nn.Module) -> Residual:
        return norm(x + update)

    def final(self, norm: nn.Module) -> nn.Module:
        return nn.Identity()


class SinkBlock(nn.Module):
    """One block of the stack. Norms have Llama's names, at the start and at the end of a branch."""

    gradient_checkpointing = False  # transformers sets it, and the function that `__call__` uses
    _gradient_checkpointing_func: Callable[..., Tensor]
    forward_methods: ClassVar[tuple[str, ...]] = ("as_slot",)  # methods other than `forward` that use the weights

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
