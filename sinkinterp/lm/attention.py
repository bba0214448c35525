"""Multi-head attention whose kernel, mask and slots are values, called through transformers' attention interface."""

from dataclasses import dataclass
from typing import Any

from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import Cache, PreTrainedConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..attention.call import call_of_interface
from ..attention.kernels import SOFTMAX, Kernel
from ..attention.masks import Causal, Mask
from ..attention.slots import NoSlots
from ..spec import Dims, Part, Spec
from .positions import Position

Residual = Float[Tensor, "batch pos d_model"]


@dataclass(frozen=True)
class AttentionSpec(Spec):
    """softmax attention over the past by default; every field swaps one step."""

    kernel: Kernel = SOFTMAX
    mask: Mask = Causal()
    slots: Part = NoSlots()


def eager_attention_forward(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    scaling: float, **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The family's own attention function: by the fused kernel where there is one and no pattern is asked for."""
    call = call_of_interface(module.layer_idx, query, key, value, attention_mask, scaling, **kwargs)
    pattern = call.pattern() if kwargs.get("output_attentions") or module.config.output_attentions else None
    z = call.output() if pattern is None else call.mix(pattern)
    return z.transpose(1, 2), pattern


class SinkAttention(nn.Module):
    """Reads the residual stream and writes a head-mixed average of values."""

    is_causal = True

    def __init__(self, config: PreTrainedConfig, spec: AttentionSpec, dims: Dims, layer_idx: int) -> None:
        super().__init__()
        width = dims.n_heads * dims.d_head
        self.config, self.layer_idx = config, layer_idx
        self.d_head, self.scaling = dims.d_head, dims.d_head**-0.5
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(dims.d_model, width, bias=False) for _ in range(3))
        self.o_proj = nn.Linear(width, dims.d_model, bias=False)
        self.kernel, self.slots = spec.kernel, spec.slots.build(dims)

    def forward(
        self,
        hidden_states: Residual,
        position: Position,
        position_ids: Int[Tensor, "#batch pos"],
        attention_mask: Bool[Tensor, "#batch 1 pos key"] | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[Residual, Tensor | None]:
        """Residual update, and the pattern where `output_attentions` asks for it."""
        q, k, v = (
            rearrange(proj(hidden_states), "b pos (head d) -> b head pos d", d=self.d_head)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = position.rotate(q, position_ids), position.rotate(k, position_ids)
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, self.layer_idx)
        attention_interface = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        z, pattern = attention_interface(
            self, q, k, v, attention_mask, scaling=self.scaling, kernel=self.kernel, slot=self.slots(), **kwargs
        )
        return self.o_proj(rearrange(z, "b pos head d -> b pos (head d)")), pattern
