"""A tiny Llama and a GGUF file of it, written with the package `gguf`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

F32, Q4_1 = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.Q4_1
FILE_TYPES = {F32: gguf.LlamaFileType.ALL_F32, Q4_1: gguf.LlamaFileType.MOSTLY_Q4_1}
WORDS = ["<s>", "a", "b", "ab", "Ġ", "1", "ĠĠ"]  # Ġ stands for a space
_MODULES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def tiny_llama(seed: int | None = None) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=37, hidden_size=32, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=41, tie_word_embeddings=False, initializer_range=0.3,
    )  # fmt: skip
    if seed is not None:
        torch.manual_seed(seed)
    return LlamaForCausalLM(config).eval()


def write_gguf(
    path: Path, model: LlamaForCausalLM, quantisation=F32, with_words: bool = False, more: Mapping[str, Any] = {}
) -> Path:
    """The file `path`; its matrices in `quantisation`, with more tensors and numbers of metadata."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_file_type(FILE_TYPES[quantisation])
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    if with_words:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list([*WORDS, *(f"<{i}>" for i in range(config.vocab_size - len(WORDS)))])
        writer.add_token_merges(["a b", "Ġ Ġ"])
        writer.add_bos_token_id(0)
    for name, weight in model.state_dict().items():
        ours, array = _as_in_gguf(name, weight, config)
        kind = quantisation if weight.ndim == 2 else F32
        writer.add_tensor(ours, gguf.quantize(array, kind), raw_dtype=kind)
    for name, value in more.items():
        if isinstance(value, int):
            writer.add_uint16(name, value)
        else:
            writer.add_tensor(name, value.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _as_in_gguf(name: str, weight: Tensor, config: LlamaConfig):
    module, block = name.removesuffix(".weight"), ""
    if module.startswith("model.layers."):
        index, _, module = module.removeprefix("model.layers.").partition(".")
        block = f"blk.{index}."
    ours = _MODULES[module]
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    if ours in heads:  # llama.cpp has the two numbers of a rotary pair side by side, transformers half a head apart
        weight = weight.unflatten(0, (heads[ours], 2, -1)).transpose(1, 2).reshape(weight.shape)
    return f"{block}{ours}.weight", weight.numpy()
