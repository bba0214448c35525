"""Export to transformers' Llama, for the architecture that is Llama."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import InputError
from .attention import AttentionSpec
from .block import PreNorm
from .config import LMSpec
from .ffn import GatedFFN
from .positions import Rotary
from .sink_token import Nothing


def to_llama(spec: LMSpec, weights: Mapping[str, Tensor]) -> PreTrainedModel:
    """A `LlamaForCausalLM` with these weights. Raises InputError unless the architecture is Llama's."""
    from transformers import LlamaConfig, LlamaForCausalLM  # here: our type registers while they may be loading

    if not isinstance(spec.position, Rotary) or not isinstance(spec.ffn, GatedFFN) or spec != _as_llama(spec):
        raise InputError(
            "only rotary positions, plain causal softmax attention and SwiGLU are Llama; export such a model"
        )
    config = LlamaConfig(
        vocab_size=spec.vocab,
        hidden_size=spec.d_model,
        intermediate_size=spec.ffn.width,
        num_hidden_layers=spec.n_layers,
        num_attention_heads=spec.n_heads,
        max_position_embeddings=spec.n_ctx,
        rms_norm_eps=spec.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": spec.position.base},
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng():
        llama = LlamaForCausalLM(config)
    llama.load_state_dict(weights)
    return llama


def _as_llama(spec: LMSpec) -> LMSpec:
    """The spec with Llama's parts, at its own sizes and positions."""
    ffn = GatedFFN(getattr(spec.ffn, "width", 1))
    return replace(spec, attention=AttentionSpec(), branch=PreNorm(), before=Nothing(), ffn=ffn)
