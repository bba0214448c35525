"""The model and the tokenizer of a name, a folder or a GGUF file, read by transformers: whole, or refused.

GGUF files come first, which are dequantised to a plain model. Then comes what a configuration says before its weights
are read, and what the weights hold by their headers alone. Then come the model, which must take every tensor, and the
tokenizer.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import try_to_load_from_cache
from safetensors import SafetensorError, safe_open
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSeq2SeqLM,
    AutoModelForSpeechSeq2Seq,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

from ...checks import InputError, check_installed, check_memory, refusal, refusing
from ...data.hub import asking_hub
from ...files import check_is_file
from ...lm import model as ours  # noqa: F401  transformers' auto classes then know our models
from ...seals import verify
from ..mended import adapter_folder, base_of, merged
from .folders import check_file, check_folder, is_gguf
from .kinds import check_causal_folder
from .named_models import located, origin_in


def _place_of(source: str | Path) -> dict[str, Any]:
    """The arguments of `from_pretrained` for a name, a folder or a GGUF file."""
    file = Path(source).resolve()
    if is_gguf(source):
        return {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    return {"pretrained_model_name_or_path": source}


def _gguf_metadata(file: Path) -> dict[str, Any]:
    """The metadata of a GGUF file, arrays of strings as their lengths.

    Raises InputError if the file is absent or is not GGUF, or if the package `gguf` is absent.
    """
    check_is_file(file)
    check_installed("gguf", f"{file} is read with it; pip install gguf")
    if not hasattr(transformers, "GgufConfig"):
        raise InputError(f"transformers {transformers.__version__} does not read {file} whole; use 5.17 or newer")
    with refusal(f"{file} is not a GGUF file, or is damaged"):
        return _read_gguf(file)[0]


def _read_gguf(file: Path) -> tuple[dict[str, Any], Any]:
    """The metadata and the tensors' names of a GGUF file."""
    from transformers.integrations.gguf import read_gguf_metadata

    return read_gguf_metadata(str(file))


_FACTORS = "rope_freqs.weight"  # of the frequencies of rotation, in a GGUF file


@refusing
def _check_gguf(file: Path) -> Iterator[str]:
    """Why transformers would build another model than the file holds: it gives sizes that are not said defaults."""
    metadata = _gguf_metadata(file)
    kind = metadata.get("general.architecture")
    sizes = {name: metadata.get(f"{kind}.{name}") for name in ("block_count", "embedding_length")}
    if lacking := [f"{kind}.{name}" for name, size in sizes.items() if not isinstance(size, int)]:
        yield f"{file} does not say how large the model is ({', '.join(lacking)})"
    layers, width = (int(size or 0) for size in sizes.values())
    least, bits = layers * width**2, 8 * file.stat().st_size  # a square matrix for each layer, of 1 bit a weight
    if least > bits:
        yield f"{file} is smaller than {layers:,} layers of {width:,} dimensions, which it says"


def _rotate_as_llama3(model: PreTrainedModel, file: Path) -> None:
    """Divides the frequencies of rotation by those that a GGUF file of Llama 3.1 to 3.3 holds, as llama.cpp does.

    transformers does not read them. Other factors are left, and then refused as a tensor that the model does not take.
    """
    from gguf import GGUFReader

    if _FACTORS not in _read_gguf(file)[1] or not getattr(model.config, "rope_parameters", None):
        return
    (tensor,) = [tensor for tensor in GGUFReader(file).tensors if tensor.name == _FACTORS]
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
    quantisation = _gguf_metadata(path).get("general.file_type")
    from gguf import LlamaFileType

    names = {kind.value: f" {kind.name.split('_', 1)[-1]}" for kind in LlamaFileType}  # ALL_F32, MOSTLY_Q4_1
    return f"GGUF{names.get(quantisation, '')}, dequantised"


def class_of(source: str | Path) -> Any:
    """The class of transformers that reads a model whole: encoder and decoder, where it has both."""
    config = _config_of(source)
    if config is None or not config.is_encoder_decoder:
        sees = type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING and type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING
        return AutoModelForImageTextToText if sees else AutoModelForCausalLM  # as LLaVA
    is_speech = type(config) in MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING
    return AutoModelForSpeechSeq2Seq if is_speech else AutoModelForSeq2SeqLM


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
    fix, how = "", {"use_safetensors": True}  # of a folder, the reason says the fix
    if is_gguf(source):
        _check_gguf(Path(source))
        fix, how = "take the model's own weights", {"quantization_config": transformers.GgufConfig(dequantize=True)}
        verify(Path(source).resolve().parent, Path(source).resolve().name)
    else:
        check_folder(source)
        if not Path(source).exists():
            fix = _NAME_ONE
        verify(Path(source), "*config.json", "model*")
    with refusal(f"cannot load {given}", fix), asking_hub(source):  # a damaged file can fail anyhow
        config = checked_config(source)
        if config is not None and Path(source).is_dir():
            check_weights(Path(source), config, dtype, is_spread=device_map is not None)
        model, loading = class_of(source).from_pretrained(
            **_place_of(source), **how, dtype=dtype, device_map=device_map, trust_remote_code=False,
            output_loading_info=True, ignore_mismatched_sizes=True,  # which are refused below, by name
        )  # fmt: skip
    if is_gguf(source):
        _rotate_as_llama3(model, Path(source))
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
        tokenizer = AutoTokenizer.from_pretrained(**_place_of(source), trust_remote_code=False)
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
        return "tokenizer.ggml.tokens" in _gguf_metadata(path)
    return not path.is_dir() or any(path.glob("tokenizer*"))


def newest_in(source: Any) -> Any:
    """The folder of the newest checkpoint in that of a run of ours; anything else itself."""
    if not isinstance(source, str | Path) or os.path.exists(os.path.join(source, "config.json")):
        return source
    steps = [file.parent for file in Path(source).glob("step-*/config.json")] if os.path.isdir(source) else []
    return max(steps, key=lambda step: (len(step.name), step.name), default=source)


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


Shapes = Mapping[str, tuple[int, ...]]
_WHOLE = ("BOOL", "I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64")  # what safetensors calls them
_CONSTANT = re.compile(r"(^|\.)(inv_freq|original_inv_freq|masked_bias|position_ids)$")  # models compute them
_MTP = ("num_mtp_layers", "num_nextn_predict_layers")  # how many layers predict later tokens
_OWN = "take the weights and the config.json that save_pretrained wrote together, not quantised otherwise"


@refusing
def check_weights(folder: Path, config: PreTrainedConfig, dtype: torch.dtype | str, is_spread: bool) -> Iterator[str]:
    """Raises InputError where the weights of a local folder cannot be those of the configuration, or do not fit.

    A configuration with more layers than there are tensors is refused here, and one with a larger embedding than all
    of them together. Transformers would first make a model of that size. `is_spread`: weights go where a device
    map says, so that the memory of this machine does not count.
    """
    read = _files_read(folder)
    files = read or sorted(folder.glob("*.safetensors"))
    is_plain = not _is_quantised(getattr(config, "quantization_config", None))
    shapes = [shape for file in files for shape in _shapes(file, is_plain).values()]
    if (folder / "adapter_config.json").is_file():
        yield f"{folder} holds a model and an adapter; merge them: model.merge_and_unload().save_pretrained(FOLDER)"
    if read and (unread := sorted({*folder.glob("model-*-of-*.safetensors")} - {*read})):
        yield f"{unread[0]} belongs to no model that is read there"
    text, elements = config.get_text_config(decoder=True), sum(map(prod, shapes))
    layers, width, vocab = (getattr(text, name, 0) for name in ("num_hidden_layers", "hidden_size", "vocab_size"))
    are_sizes = all(isinstance(size, int) for size in (layers, width, vocab))  # transformers says what else is wrong
    if are_sizes and (not 0 < layers <= len(shapes) or 0 < 8 * elements < width * vocab):  # 8: they may be packed
        yield f"{folder}/config.json describes {layers:,} layers of width {width:,}, for {len(shapes)} tensors"
    if not is_spread:
        size = getattr(torch, str(dtype).removeprefix("torch."), torch.float32).itemsize
        fix = 'use dtype="bfloat16" or device_map="auto"'
        check_memory(size * elements, f"the weights of {folder} in {dtype}", fix)


def _is_quantised(how: Any) -> bool:
    """Whether weights are quantised in a way that transformers reads; it leaves out others without an error."""
    said = how if isinstance(how, dict) else {}
    bits = said.get("load_in_8bit") or said.get("load_in_4bit")  # of bitsandbytes, whose name came later
    return bool(bits) or said.get("quant_method") in AUTO_QUANTIZATION_CONFIG_MAPPING


@refusing
def check_read_whole(source: str | Path, model: PreTrainedModel, loading: Mapping[str, Any]) -> Iterator[str]:
    """Raises InputError for parameters without a tensor, and for tensors that no parameter takes.

    Not for tensors that transformers leaves out for a reason: constants that a model computes itself (rotations,
    masks), those that its class names, and layers that predict later tokens. loading: what `from_pretrained` says.
    """
    file = Path(source)
    shapes = dict.fromkeys(_read_gguf(file)[1], ()) if file.is_file() else _shapes_of(source)
    surplus = [*loading["unexpected_keys"], *(_not_in_gguf_map(shapes, model) if file.is_file() else ())]
    surplus = sorted({name for name in surplus if not _is_left_out(name, shapes, model)})
    absent = sorted({*loading["missing_keys"], *(key for key, *_ in loading["mismatched_keys"])})
    if absent:
        yield f"{source} has no fitting weights for {', '.join(absent[:3])}; {_OWN}"
    if surplus := surplus or next((names[1:] for names in _by_parameter(shapes, model).values() if len(names) > 1), []):
        more = f" and {len(surplus) - 3} more" if len(surplus) > 3 else ""
        yield f"{source} holds {', '.join(surplus[:3])}{more}, which the model does not take; {_OWN}"


def _files_read(folder: Path) -> list[Path]:
    """The files of a folder that transformers reads weights from; empty where it says itself what is wrong."""
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.is_file() or not index.is_file():
        return [whole] if whole.is_file() else []
    try:
        names = {*json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    return [folder / str(name) for name in sorted(map(str, names))]


def _shapes_of(source: str | Path) -> dict[str, tuple[int, ...]]:
    """The tensors of a folder, or of a name of the Hub that has been read, with their shapes."""
    path = Path(source)
    if not path.is_dir():
        cached = try_to_load_from_cache(str(source), "config.json")
        path = Path(cached).parent if isinstance(cached, str) else path
    return {name: shape for file in _files_read(path) for name, shape in _shapes(file, is_plain=False).items()}


def _shapes(file: Path, is_plain: bool) -> dict[str, tuple[int, ...]]:
    damaged = refusal(f"{file} holds no whole weights", of=(SafetensorError, OSError))
    with damaged, safe_open(file, "pt") as tensors:
        slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118  no mapping
        for name, part in slices.items():
            kind = part.get_dtype()
            if kind == "C64" or (is_plain and kind in _WHOLE and name.endswith("weight")):  # not a mask
                raise InputError(f"{file} holds {name} as {kind}, which is not a weight; {_OWN}")
        return {name: tuple(part.get_shape()) for name, part in slices.items()}


def _not_in_gguf_map(names: Shapes, model: PreTrainedModel) -> Iterator[str]:
    """The tensors of a GGUF file for which transformers knows no parameter, and which it leaves out."""
    from transformers.integrations.gguf.gguf_conversion_mapping import GGUF_ARCHS
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map

    kind = model.config.model_type
    if kind.removesuffix("_text").replace("_", "") in GGUF_ARCHS:
        return  # read as safetensors are, so `from_pretrained` names them
    kind = {"qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "minimax_m2": "minimax-m2"}.get(kind, kind)
    known = get_gguf_hf_weights_map(model, TENSOR_PROCESSORS.get(kind, TensorProcessor)())
    known = {*known, *(f"{name}.weight" for name in known), "output.weight"}  # experts in one tensor; GPT-2's head
    yield from (name for name in names if name not in known)


def _by_parameter(names: Shapes, model: PreTrainedModel) -> dict[str, list[str]]:
    """The tensors that transformers takes for each parameter, under any name; not those that it joins or divides."""
    mapping, parameters = get_model_conversion_mapping(model), model.state_dict()
    renamings = [change for change in mapping if isinstance(change, WeightRenaming)]
    converters = [change for change in mapping if isinstance(change, WeightConverter)]
    found: dict[str, list[str]] = {}
    for name in names:
        parameter, joined = rename_source_key(name, renamings, converters, model.base_model_prefix, parameters)
        if joined is None and parameter in parameters:
            found.setdefault(parameter, []).append(name)
    return found


def _is_left_out(name: str, shapes: Shapes, model: PreTrainedModel) -> bool:
    """Tells if a tensor is what the model computes itself, or belongs to a layer that predicts later tokens (MTP).

    The former are buffers, rotations, and masks `1 1 query key`. The latter are layers after the last that the
    configuration counts, one of whose tensors joins the token with the residual.
    """
    buffers, shape = dict(model.named_buffers()), shapes.get(name, ())
    is_mask = len(shape) == 4 and shape[:2] == (1, 1) and shape[2] == shape[3] and name.endswith("bias")
    if is_mask or _CONSTANT.search(name) or name in buffers or f"{model.base_model_prefix}.{name}" in buffers:
        return True
    if name == _FACTORS:
        return (getattr(model.config, "rope_parameters", None) or {}).get("rope_type") == "llama3"
    text = model.config.get_text_config(decoder=True)
    depth, count = getattr(text, "num_hidden_layers", 0), max(getattr(text, key, None) or 0 for key in _MTP)
    layer = re.match(r"(?:.*?\.)?(\d+)\.", name)
    if layer is None or not depth <= int(layer[1]) < depth + count:
        return False
    return any(other.startswith(f"{layer[0]}eh_proj") for other in shapes)
