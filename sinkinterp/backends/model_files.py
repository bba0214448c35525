"""The model and the tokenizer of a name, a folder or a GGUF file, read by transformers: whole, or refused.

GGUF files come first, which are dequantised to a plain model. Then comes what a configuration says before its weights
are read, and what the weights hold by their headers alone. Then come the model, which must take every tensor, and the
tokenizer.
"""

import os
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation import GenerationMixin
from transformers.models.auto import modeling_auto as auto

from ..checks import InputError, refusal
from ..data.hub import asking_hub
from ..files import verify
from ..lm import model as ours  # noqa: F401  transformers' auto classes then know our models
from .adapters import adapter_folder, base_of, merged
from .named_models import located, origin_in
from .weights import (
    ROTATION_FACTORS,
    check_file,
    check_folder,
    check_gguf,
    check_read_whole,
    check_weights,
    gguf_metadata,
    in_order,
    is_gguf,
    read_gguf,
)


def _place_of(source: str | Path) -> dict[str, Any]:
    """The arguments of `from_pretrained` for a name, a folder or a GGUF file."""
    file = Path(source).resolve()
    if is_gguf(source):
        return {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    return {"pretrained_model_name_or_path": source}


def _rotate_as_llama3(model: PreTrainedModel, file: Path) -> None:
    """Divides the frequencies of rotation by those that a GGUF file of Llama 3.1 to 3.3 holds, as llama.cpp does.

    transformers does not read them. Other factors are left, and then refused as a tensor that the model does not take.
    """
    from gguf import GGUFReader

    if ROTATION_FACTORS not in read_gguf(file)[1] or not getattr(model.config, "rope_parameters", None):
        return
    (tensor,) = [tensor for tensor in GGUFReader(file).tensors if tensor.name == ROTATION_FACTORS]
    factors = torch.tensor(tensor.data.tolist())
    rotations = {name: m for name, m in model.named_modules() if isinstance(getattr(m, "inv_freq", None), torch.Tensor)}
    before, plain = model.config.rope_parameters, [module.inv_freq for module in rotations.values()]
    numbers = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    llama3 = {"rope_type": "llama3", "factor": float(factors.max()), **numbers}
    model.config.rope_parameters = {**before, **llama3}
    made = {name: type(module)(config=model.config) for name, module in rotations.items()}
    pairs = zip(plain, made.values(), strict=True)
    is_same = all(x.shape == factors.shape and torch.allclose(x.cpu() / factors, m.inv_freq) for x, m in pairs)
    if not (rotations and is_same):
        model.config.rope_parameters = before
        return
    for name, module in made.items():
        model.set_submodule(name, module.to(plain[0].device))


def origin_of(source: str | Path) -> str:
    """Where the weights of a folder with a SOURCE.json come from; of a GGUF file, such as "GGUF Q4_1, dequantised".

    Empty for any other source.
    """
    path = Path(located(source))
    if not is_gguf(path):
        return str(origin_in(path).get("from", ""))
    quantisation = gguf_metadata(path).get("general.file_type")
    from gguf import LlamaFileType

    names = {kind.value: f" {kind.name.split('_', 1)[-1]}" for kind in LlamaFileType}  # ALL_F32, MOSTLY_Q4_1
    return f"GGUF{names.get(quantisation, '')}, dequantised"


def _class_of(config: PreTrainedConfig | None) -> Any:
    """The class of transformers that reads a model whole: encoder and decoder, where it has both. None: a GGUF file."""
    kind = type(config)
    if config is not None and config.is_encoder_decoder:
        is_speech = kind in auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING
        return transformers.AutoModelForSpeechSeq2Seq if is_speech else transformers.AutoModelForSeq2SeqLM
    if kind in auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING and kind not in auto.MODEL_FOR_CAUSAL_LM_MAPPING:
        return transformers.AutoModelForImageTextToText  # as LLaVA
    return transformers.AutoModelForCausalLM


def checked_config(source: str | Path) -> PreTrainedConfig | None:
    """The configuration of a name or a folder; None without one.

    Raises InputError where it is not of a language model, and where it names an attention kernel of the Hub, which
    transformers would download and run.
    """
    config = _config_of(source)
    kernel = None if config is None else getattr(config, "_attn_implementation", None)
    if isinstance(kernel, str) and "/" in kernel:
        raise InputError(f"{source} names the attention kernel {kernel}, code of the Hub; take it out of config.json")
    if config is not None:
        check_causal_folder(config, str(source))
    return config


def _config_of(source: str | Path) -> PreTrainedConfig | None:
    """The configuration of a name or a folder; None for a GGUF file, and for a folder without one."""
    if is_gguf(source) or (Path(source).is_dir() and not (Path(source) / "config.json").is_file()):
        return None
    with asking_hub(source):
        return AutoConfig.from_pretrained(source, trust_remote_code=False)


_NAME_ONE = "give a name on the Hub, with a network, a local folder, or a name that `sinkinterp list models` prints"
DeviceMap = str | dict[str, int | str | torch.device] | None


def load_model(
    source: str | Path, dtype: torch.dtype | str = torch.float32, device_map: DeviceMap = None
) -> PreTrainedModel:
    """The transformers model of a name, a folder or a GGUF file. Raises InputError where it cannot be loaded whole.

    Weights are checked by the sha256.json beside them. A GGUF file without one does not show that it is damaged.
    """
    given, source = source, located(source)
    if folder := adapter_folder(source):
        base = base_of(folder)
        try:
            model = load_model(base, dtype, device_map)
        except InputError as error:
            raise InputError(f"{given} is an adapter, which is read with its base model {base}: {error}") from error
        return merged(model, folder)
    path = Path(source)
    if is_gguf(path):
        check_gguf(path)
        verify(path.resolve().parent, path.resolve().name)
        fix, how = "take the model's own weights", {"quantization_config": transformers.GgufConfig(dequantize=True)}
    else:
        check_folder(source)
        verify(path, "*config.json", "model*")
        fix, how = "" if path.exists() else _NAME_ONE, {"use_safetensors": True}  # of a folder, the reason says the fix
    with refusal(f"cannot load {given}", fix), asking_hub(source):  # a damaged file can fail anyhow
        config = checked_config(source)
        if config is not None and path.is_dir():
            check_weights(path, config, dtype, is_spread=device_map is not None)
        model, loading = _class_of(config).from_pretrained(
            **_place_of(source), **how, dtype=dtype, device_map=device_map, trust_remote_code=False,
            output_loading_info=True, ignore_mismatched_sizes=True,  # which are refused below, by name
        )  # fmt: skip
    if is_gguf(path):
        _rotate_as_llama3(model, path)
    check_read_whole(source, model, loading)
    return model


def load_tokenizer(source: str | Path) -> PreTrainedTokenizerBase | None:
    """The tokenizer beside a model, or in its GGUF file; None without one.

    In an encoder-decoder model, its BOS is the token that the decoder starts with.
    """
    source = located(source)
    check_file(Path(source))
    folder = adapter_folder(source)
    source = folder or source
    if not _has_tokenizer(Path(source)):
        return load_tokenizer(base_of(folder)) if folder else None
    verify(Path(source), "*token*", "config.json")
    fix = "" if Path(source).exists() else _NAME_ONE
    any_error = refusal(f"cannot load the tokenizer of {source}", fix)  # a damaged file can fail in any way
    with any_error, asking_hub(source):
        tokenizer = transformers.AutoTokenizer.from_pretrained(**_place_of(source), trust_remote_code=False)
        config = _config_of(source)
    start = getattr(config, "decoder_start_token_id", None)
    if config is not None and config.is_encoder_decoder and start is not None:
        tokenizer.bos_token = tokenizer.convert_ids_to_tokens(start)
    return tokenizer


def tokenizer_of(source: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a name or a folder. Raises InputError where it has none."""
    if (tokenizer := load_tokenizer(source)) is None:
        raise InputError(f"{source} holds no tokenizer; save one there, or give the name or the folder of one")
    return tokenizer


def _has_tokenizer(path: Path) -> bool:
    """Tells if a GGUF file or a local folder holds a tokenizer; of a model on the Hub this is not known, so yes."""
    if is_gguf(path):
        return "tokenizer.ggml.tokens" in gguf_metadata(path)
    return not path.is_dir() or any(path.glob("tokenizer*"))


def newest_in(source: Any) -> Any:
    """The folder of the newest checkpoint in that of a run of ours; anything else itself."""
    if not isinstance(source, str | Path) or not os.path.isdir(source) or os.path.exists(f"{source}/config.json"):
        return source
    steps = [file.parent for file in Path(source).glob("step-*/config.json")]
    return max(steps, key=in_order, default=source)


def context_of(config: PreTrainedConfig) -> int | None:
    """The longest sequence that the model of a configuration knows of; None without a limit."""
    limits = (getattr(config.get_text_config(), name, None) for name in _CONTEXT)
    return next((limit for limit in limits if limit is not None and limit > 0), None)  # XLNet says -1


def check_named(source: str | Path) -> None:
    """Raises InputError for a model that is not here, and that the Hub does not know. Reads no weights."""
    place = located(source)
    if not Path(place).exists():
        with refusal(f"cannot load {source}", _NAME_ONE):
            checked_config(place)


def config_here(source: str | Path) -> PreTrainedConfig | None:
    """The configuration of a model on this machine; None if it cannot be read."""
    try:
        place = Path(located(source))
        return _config_of(place) if place.is_dir() else None
    except Exception:  # reading the weights says what is wrong
        return None


_ENCODED = {**auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, **auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES}
_CAUSAL = {**auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, **auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}
_CONTEXT = ("max_target_positions", "max_position_embeddings", "max_seq_len")  # the longest sequence
_WEIGHTS = "(model(..., output_attentions=True).attentions), with attn_implementation='eager'"


def check_causal(kind: Any, config: PreTrainedConfig, name: str) -> None:
    """Raises InputError for a class of transformers that is not a causal language model, and for an encoder's config.

    The message says what the model is and which class to load. Classes of other packages are tried.
    """
    if not kind.__module__.startswith("transformers.") or not issubclass(kind, PreTrainedModel):
        return
    names = _ENCODED if config.is_encoder_decoder else _CAUSAL
    sees_later = not config.is_encoder_decoder and _sees_later_tokens(config)
    what = name if kind.__name__ in name else f"{name}, a {kind.__name__},"
    reads_tokens = issubclass(kind, GenerationMixin) and kind.main_input_name == "input_ids"  # CTC generates from sound
    if sees_later or (config.model_type not in names and not reads_tokens):
        why = "is not a causal language model, so its first token has no sink to measure"
        raise InputError(f"{what} {why}; draw its maps: si.attention_map{_WEIGHTS}")
    if not issubclass(kind, GenerationMixin):
        fix = f"load it as {names[config.model_type]}, or measure its attention alone: si.sinks{_WEIGHTS}"
        raise InputError(f"{what} does not predict tokens; {fix}")


def check_causal_folder(config: PreTrainedConfig, name: str) -> None:
    """As `check_causal`, of the class that config.json names. A base model with a tied head is whole."""
    kind = getattr(transformers, (getattr(config, "architectures", None) or [""])[0], None)
    is_base = kind is not None and kind.__name__ == auto.MODEL_MAPPING_NAMES.get(config.model_type)
    is_whole = is_base and getattr(config, "tie_word_embeddings", False) and config.model_type in _CAUSAL
    if isinstance(kind, type) and not config.is_encoder_decoder and not (is_whole and not _sees_later_tokens(config)):
        check_causal(kind, config, name)


def _sees_later_tokens(config: PreTrainedConfig) -> bool:
    """Whether a configuration says that tokens see later ones, as in BERT and EmbeddingGemma."""
    sizes = config.get_text_config()
    both_ways = getattr(sizes, "use_bidirectional_attention", None) in (True, "all")
    may_encode = sizes.model_type in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES  # GPT-NeoX says is_decoder=False as well
    return both_ways or (may_encode and not getattr(sizes, "is_decoder", True))
