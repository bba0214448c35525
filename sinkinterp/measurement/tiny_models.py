"""Tiny models of transformers' families, with random weights and sizes that are guessed from the configuration."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from ..backends.contract import sample_tokens

VOCAB = 97
_HEAD, _ROTATED = 16, 8
_MOST_PARAMETERS = 20_000_000  # of a model that counts as tiny

# what configurations call their sizes, by the size; those that a configuration has are set
_NAMES: Mapping[int, str] = {
    0: "num_kv_shared_layers pad_token_id",
    1: "n_group topk_group num_expert_group n_shared_experts mamba_n_groups n_groups bos_token_id",
    2: "num_key_value_heads num_kv_heads linear_num_key_heads num_experts_per_tok num_experts_per_token moe_topk moe_k "
    "top_k zero_expert_num eos_token_id",
    4: "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_attention_heads n_head n_heads "
    "num_heads attention_heads decoder_attention_heads encoder_attention_heads linear_num_heads linear_num_value_heads "
    "num_experts num_local_experts n_routed_experts moe_num_experts mamba_dt_rank hidden_size_per_layer_input "
    "index_topk index_n_heads",
    5: "sliding_window",
    _ROTATED: "qk_rope_head_dim qk_nope_head_dim rotary_dim mamba_d_state ssm_state_size state_size mamba_chunk_size "
    "chunk_size mamba_n_heads mamba_num_heads",
    _HEAD: "head_dim global_head_dim linear_head_dim linear_key_head_dim linear_value_head_dim v_head_dim "
    "index_head_dim mamba_d_head mamba_head_dim",
    32: "kv_lora_rank q_lora_rank attention_head_dim",
    40: "intermediate_size moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size ffn_dim "
    "decoder_ffn_dim encoder_ffn_dim ffn_hidden_size expert_ffn_hidden_size",
    64: "hidden_size n_embd d_model emb_dim max_position_embeddings n_positions max_seq_len model_max_length",
    VOCAB: "vocab_size vocab_size_per_layer_input encoder_hash_byte_group_vocab",
    128: "mamba_d_ssm attention_hidden_size",
}
_SIZES = {name: size for size, names in _NAMES.items() for name in names.split()}
_WITH_LATENT_KEYS = {"num_key_value_heads": 4, "head_dim": _ROTATED}  # as DeepSeek has them
_HYBRID = ["linear_attention", "full_attention"] * 2
_MORE: Mapping[str, Mapping[str, Any]] = {  # what else a family needs to attend, or to be built
    "bailing_hybrid": {"layer_group_size": 2},
    "bamba": {"attn_layer_indices": [1]},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": 5},
    "granitemoehybrid": {"layer_types": _HYBRID},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": {"layer_types": _HYBRID},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "mamba2": {"num_heads": 8},
    "reformer": {"axial_pos_shape": [8, 8], "axial_pos_embds_dim": [32, 32]},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"layers_block_type": ["linear_attention", "hybrid"] * 2},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"] * 2},
    "zaya": {"layer_types": ["hybrid"] * 4, "num_experts_per_tok": 1},
}


def tiny_model(family: str) -> PreTrainedModel:
    """A model of a family with peaked attention. Raises whatever transformers raises where the guess does not fit."""
    config = _tiny(AutoConfig.for_model(family), _MORE.get(family, {}))
    with torch.device("meta"):
        size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    if size > _MOST_PARAMETERS:
        raise ValueError(f"{size / 1e6:.0f} million parameters are left")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "att" in name and parameter.ndim > 1:
                parameter.mul_(4)
        tokens = sample_tokens(VOCAB)
        model(tokens, attention_mask=torch.ones_like(tokens), use_cache=False)
    return model


def _tiny(config: PretrainedConfig, more: Mapping[str, Any]) -> PretrainedConfig:
    """A configuration of the same class with small sizes, those of its parts included."""
    fields = config.to_dict()
    sizes = {**_SIZES, **(_WITH_LATENT_KEYS if "qk_rope_head_dim" in fields else {})}
    chosen = {name: value for name, value in sizes.items() if name in fields}
    parts = {name: getattr(config, name, None) for name in config.sub_configs}
    small = {name: _tiny(part, {}) for name, part in parts.items() if isinstance(part, PretrainedConfig)}
    if fields.get("is_decoder") is False:
        chosen["is_decoder"] = True
    return type(config)(**{**chosen, **small, **more})
