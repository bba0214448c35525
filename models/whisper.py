"""Whisper from CTranslate2's format to a transformers folder: every tensor is used exactly once."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperTokenizer,
)

from sinkinterp.checks import InputError

from . import ctranslate2

START, END, NO_TIMESTAMPS = 50257, 50256, 50362  # ids of the English models' vocabulary
GELU = 3
SETTINGS = {"pre_norm": 1, "activation": GELU, "alibi": 0, "scale_embeddings": 0, "start_from_zero_embedding": 0}
UNUSED = ("num_heads", "alignment_heads", "alignment_layer")  # the last two: where times of words are read
State = dict[str, Tensor]


def convert(binary: Path, tokenizer: Path, settings: Path, folder: Path) -> None:
    """Writes a model folder of transformers: weights in float32, tokenizer, feature extractor, generation settings.

    tokenizer: a tokenizer.json. settings: CTranslate2's config.json, which names the ids that decoding suppresses.
    Raises InputError for a binary that holds no English Whisper of OpenAI's kind.
    """
    config, state = converted(ctranslate2.read(binary))
    with torch.device("meta"):
        model = WhisperForConditionalGeneration(config)
    model.load_state_dict(state, assign=True)
    model.tie_weights()
    model.generation_config = _generation(config, json.loads(settings.read_text(encoding="utf-8")))
    model.save_pretrained(folder)
    start = "<|startoftranscript|>"  # transformers' default is the end token, which no text of Whisper's begins with
    WhisperTokenizer(tokenizer_file=str(tokenizer), bos_token=start).save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=config.num_mel_bins).save_pretrained(folder)


def converted(binary: ctranslate2.Binary) -> tuple[WhisperConfig, State]:
    """Configuration and weights of `WhisperForConditionalGeneration`. Raises InputError as `convert`."""
    tensors = dict(binary.tensors)
    try:
        config = _config(tensors)
        state = _stack(tensors, "encoder", config.encoder_layers) | _stack(tensors, "decoder", config.decoder_layers)
        for name in ("encoder/conv1", "encoder/conv2"):
            state |= _renamed(tensors, name, f"model.{name.replace('/', '.')}")
        words = tensors.pop("decoder/embeddings/weight")
    except KeyError as error:
        raise InputError(f"the binary is no Whisper model: it lacks {error}") from error
    if tensors or binary.aliases != {"decoder/projection/weight": "decoder/embeddings/weight"}:
        extra = [*sorted(tensors), *binary.aliases][:3]
        raise InputError(f"the binary is no Whisper model: nothing in one takes {', '.join(extra)}")
    state |= {"model.decoder.embed_tokens.weight": words, "proj_out.weight": words}
    return config, {name: tensor.float() for name, tensor in state.items()}


def _config(tensors: State) -> WhisperConfig:
    """The sizes of a model, from the shapes of its tensors; takes out all that is not a weight."""
    depths = [sum(f"{side}/layer_{i}/ffn/linear_0/bias" in tensors for i in range(99)) for side in _SIDES]
    for name, value in SETTINGS.items():
        if int(tensors.pop(f"decoder/{name}")) != value:
            raise InputError(f"the binary is no Whisper model: its {name} is not {value}")
    heads, encoder_heads = int(tensors["decoder/num_heads"]), int(tensors.pop("encoder/num_heads"))
    for name in UNUSED:
        tensors.pop(f"decoder/{name}")
    vocab, d_model = tensors["decoder/embeddings/weight"].shape
    return WhisperConfig(
        vocab_size=vocab, d_model=d_model, num_mel_bins=tensors["encoder/conv1/weight"].shape[1],
        encoder_layers=depths[0], encoder_attention_heads=encoder_heads,
        encoder_ffn_dim=len(tensors["encoder/layer_0/ffn/linear_0/bias"]),
        max_source_positions=len(tensors["encoder/position_encodings/encodings"]),
        decoder_layers=depths[1], decoder_attention_heads=heads,
        decoder_ffn_dim=len(tensors["decoder/layer_0/ffn/linear_0/bias"]),
        max_target_positions=len(tensors["decoder/position_encodings/encodings"]),
        bos_token_id=START, decoder_start_token_id=START, eos_token_id=END, pad_token_id=END,
    )  # fmt: skip


_SIDES = ("encoder", "decoder")
_NORM = {"gamma": "weight", "beta": "bias"}
_LINEAR = {"weight": "weight", "bias": "bias"}


def _stack(tensors: State, side: str, depth: int) -> State:
    """Positions, blocks and last norm of the encoder or the decoder."""
    state = {f"model.{side}.embed_positions.weight": tensors.pop(f"{side}/position_encodings/encodings")}
    state |= _renamed(tensors, f"{side}/layer_norm", f"model.{side}.layer_norm", _NORM)
    for i in range(depth):
        state |= _block(tensors, f"{side}/layer_{i}", f"model.{side}.layers.{i}", has_cross=side == "decoder")
    return state


def _block(tensors: State, ours: str, theirs: str, has_cross: bool) -> State:
    state = _renamed(tensors, f"{ours}/self_attention/layer_norm", f"{theirs}.self_attn_layer_norm", _NORM)
    state |= _projections(tensors, f"{ours}/self_attention/linear_0", f"{theirs}.self_attn", "qkv")
    state |= _renamed(tensors, f"{ours}/self_attention/linear_1", f"{theirs}.self_attn.out_proj")
    if has_cross:
        state |= _renamed(tensors, f"{ours}/attention/layer_norm", f"{theirs}.encoder_attn_layer_norm", _NORM)
        state |= _projections(tensors, f"{ours}/attention/linear_0", f"{theirs}.encoder_attn", "q")
        state |= _projections(tensors, f"{ours}/attention/linear_1", f"{theirs}.encoder_attn", "kv")
        state |= _renamed(tensors, f"{ours}/attention/linear_2", f"{theirs}.encoder_attn.out_proj")
    state |= _renamed(tensors, f"{ours}/ffn/layer_norm", f"{theirs}.final_layer_norm", _NORM)
    state |= _renamed(tensors, f"{ours}/ffn/linear_0", f"{theirs}.fc1")
    return state | _renamed(tensors, f"{ours}/ffn/linear_1", f"{theirs}.fc2")


def _renamed(tensors: State, ours: str, theirs: str, names: dict[str, str] = _LINEAR) -> State:
    """The parameters of one module."""
    return {f"{theirs}.{new}": tensors.pop(f"{ours}/{old}") for old, new in names.items()}


def _projections(tensors: State, ours: str, theirs: str, roles: str) -> State:
    """The maps to queries, keys or values that one matrix holds. Keys of Whisper have no bias: theirs must be 0."""
    state: State = {}
    for kind in _LINEAR:
        parts = tensors.pop(f"{ours}/{kind}").chunk(len(roles))
        state |= {f"{theirs}.{role}_proj.{kind}": part for role, part in zip(roles, parts, strict=True)}
    if "k" in roles and state.pop(f"{theirs}.k_proj.bias").any():
        raise InputError(f"the binary is no Whisper model: the keys of {ours} have a bias")
    return state


def _generation(config: WhisperConfig, settings: dict[str, Any]) -> GenerationConfig:
    """How transformers decodes with the model."""
    return GenerationConfig(
        bos_token_id=START, decoder_start_token_id=START, eos_token_id=END, pad_token_id=END,
        forced_decoder_ids=[[1, NO_TIMESTAMPS]], no_timestamps_token_id=NO_TIMESTAMPS,
        suppress_tokens=settings["suppress_ids"], begin_suppress_tokens=settings["suppress_ids_begin"],
        alignment_heads=settings["alignment_heads"], max_length=config.max_target_positions,
        is_multilingual=False, return_timestamps=False,
    )  # fmt: skip
