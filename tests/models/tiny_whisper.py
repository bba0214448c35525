"""A tiny Whisper, and its weights in the binary format of CTranslate2."""

import json
import struct
from pathlib import Path

import torch
from torch import Tensor
from transformers import WhisperConfig, WhisperForConditionalGeneration

TYPES = {torch.float32: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.float16: 4, torch.bfloat16: 5}
_NORM, _LINEAR = {"gamma": "weight", "beta": "bias"}, {"weight": "weight", "bias": "bias"}


def tiny_whisper() -> WhisperForConditionalGeneration:
    config = WhisperConfig(
        vocab_size=50371, d_model=30, encoder_layers=2, decoder_layers=3, encoder_attention_heads=3,
        decoder_attention_heads=5, encoder_ffn_dim=7, decoder_ffn_dim=11, num_mel_bins=13, max_source_positions=17,
        max_target_positions=19, init_std=0.3,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases begin at 0, which would hide that one is lost
            parameter.copy_(torch.randn_like(parameter).half() / 3)
    return model


def tensors_of(model: WhisperForConditionalGeneration) -> dict[str, Tensor]:
    """The model's weights in float16 and its settings, by CTranslate2's names."""
    state, config = dict(model.state_dict()), model.config
    tensors = {
        "decoder/num_heads": torch.tensor(config.decoder_attention_heads, dtype=torch.int16),
        "encoder/num_heads": torch.tensor(config.encoder_attention_heads, dtype=torch.int16),
        "decoder/activation": torch.tensor(3, dtype=torch.int8),
        "decoder/pre_norm": torch.tensor(1, dtype=torch.int8),
        "decoder/alibi": torch.tensor(0, dtype=torch.int8),
        "decoder/scale_embeddings": torch.tensor(0, dtype=torch.int8),
        "decoder/start_from_zero_embedding": torch.tensor(0, dtype=torch.int8),
        "decoder/alignment_heads": torch.tensor(1, dtype=torch.int16),
        "decoder/alignment_layer": torch.tensor(-1, dtype=torch.int16),
        "decoder/embeddings/weight": state["model.decoder.embed_tokens.weight"].half(),
    }
    for side, depth in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        tensors[f"{side}/position_encodings/encodings"] = state[f"model.{side}.embed_positions.weight"].half()
        modules = [(f"{side}/layer_norm", f"{side}.layer_norm", _NORM)]
        if side == "encoder":
            modules += [(f"encoder/{name}", f"encoder.{name}", _LINEAR) for name in ("conv1", "conv2")]
        for i in range(depth):
            modules += _block(tensors, state, f"{side}/layer_{i}", f"{side}.layers.{i}", side == "decoder")
        for ours, theirs, names in modules:
            tensors |= {f"{ours}/{a}": state[f"model.{theirs}.{b}"].half() for a, b in names.items()}
    return tensors


def _block(tensors, state, ours, theirs, has_cross):
    tensors |= _fused(state, f"{ours}/self_attention/linear_0", f"model.{theirs}.self_attn", "qkv")
    modules = [
        (f"{ours}/self_attention/layer_norm", f"{theirs}.self_attn_layer_norm", _NORM),
        (f"{ours}/self_attention/linear_1", f"{theirs}.self_attn.out_proj", _LINEAR),
        (f"{ours}/ffn/layer_norm", f"{theirs}.final_layer_norm", _NORM),
        (f"{ours}/ffn/linear_0", f"{theirs}.fc1", _LINEAR),
        (f"{ours}/ffn/linear_1", f"{theirs}.fc2", _LINEAR),
    ]
    if has_cross:
        tensors |= _fused(state, f"{ours}/attention/linear_0", f"model.{theirs}.encoder_attn", "q")
        tensors |= _fused(state, f"{ours}/attention/linear_1", f"model.{theirs}.encoder_attn", "kv")
        modules += [
            (f"{ours}/attention/layer_norm", f"{theirs}.encoder_attn_layer_norm", _NORM),
            (f"{ours}/attention/linear_2", f"{theirs}.encoder_attn.out_proj", _LINEAR),
        ]
    return modules


def _fused(state, ours, theirs, roles):
    weights = [state[f"{theirs}.{role}_proj.weight"] for role in roles]
    biases = [
        torch.zeros(len(weight)) if role == "k" else state[f"{theirs}.{role}_proj.bias"]
        for role, weight in zip(roles, weights, strict=True)
    ]
    return {f"{ours}/weight": torch.cat(weights).half(), f"{ours}/bias": torch.cat(biases).half()}


def write_binary(path: Path, tensors: dict[str, Tensor], version: int = 6) -> Path:
    content = struct.pack("<I", version) + _name("WhisperSpec") + struct.pack("<II", 3, len(tensors))
    for name, tensor in tensors.items():
        shape = tensor.shape
        data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        content += _name(name) + struct.pack(f"<B{len(shape)}I", len(shape), *shape)
        content += struct.pack("<BI", TYPES[tensor.dtype], len(data)) + data
    content += struct.pack("<I", 1) + _name("decoder/projection/weight") + _name("decoder/embeddings/weight")
    path.write_bytes(content)
    return path


def _name(text: str) -> bytes:
    return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"


def write_settings(path: Path) -> Path:
    settings = {"suppress_ids": [1, 2], "suppress_ids_begin": [220], "alignment_heads": [[1, 0]], "lang_ids": []}
    path.write_text(json.dumps(settings))
    return path


def write_tokenizer(path: Path) -> Path:
    """A tokenizer.json like the one of the English models, of few words."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    specials = ["<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"]
    tokenizer.add_special_tokens([AddedToken(word, normalized=False, special=True) for word in specials])
    end, start, none = specials
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start} {none} $A {end}", special_tokens=[(word, tokenizer.token_to_id(word)) for word in specials]
    )
    tokenizer.save(str(path))
    return path
