"""The family inside transformers' registries, and its way out to Llama."""

from dataclasses import replace

import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from ..errors import InputError
from .attention import AttentionSpec
from .block import PreNorm
from .ffn import GatedFFN
from .model import SinkConfig, SinkForCausalLM
from .positions import Rotary
from .sink_token import Nothing


def register() -> None:
    """Lets `AutoConfig` and `AutoModelForCausalLM` load our checkpoints."""
    AutoConfig.register(SinkConfig.model_type, SinkConfig, exist_ok=True)
    AutoModelForCausalLM.register(SinkConfig, SinkForCausalLM, exist_ok=True)


def to_llama(model: SinkForCausalLM) -> LlamaForCausalLM:
    """The same model as a `LlamaForCausalLM`. Raises InputError where the architecture is not Llama's."""
    spec = model.config.lm
    ffn = GatedFFN(getattr(spec.ffn, "width", 1))
    plain = replace(spec, attention=AttentionSpec(), branch=PreNorm(), before=Nothing(), ffn=ffn)
    if not isinstance(spec.position, Rotary) or not isinstance(spec.ffn, GatedFFN) or spec != plain:
        raise InputError(
            "only rotary positions, plain causal softmax attention and SwiGLU are Llama; export such a model"
        )
    config = LlamaConfig(
        vocab_size=spec.vocab, hidden_size=spec.d_model, intermediate_size=spec.ffn.width,
        num_hidden_layers=spec.n_layers, num_attention_heads=spec.n_heads, max_position_embeddings=spec.n_ctx,
        rms_norm_eps=spec.norm_eps, rope_parameters={"rope_type": "default", "rope_theta": spec.position.base},
        bos_token_id=None, eos_token_id=None, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.random.fork_rng():
        llama = LlamaForCausalLM(config)
    llama.load_state_dict(model.state_dict())
    return llama.to(model.dtype)
