"""Tells if weights fit their configuration: by their headers before they are read, and tensor by tensor afterwards."""

import json
import re
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from ...checks import InputError, check_memory, refusal, refusing

Shapes = Mapping[str, tuple[int, ...]]
_WHOLE = ("BOOL", "I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64")  # what safetensors calls them
_CONSTANT = re.compile(r"(^|\.)(inv_freq|original_inv_freq|masked_bias|position_ids)$")  # models compute them
_MTP = ("num_mtp_layers", "num_nextn_predict_layers")  # how many layers predict later tokens
_ITS_CONFIG = "take the config.json that was saved with these weights"
_FIXES = {  # what names of tensors show -> what a user does
    "lora_": "merge the adapter first: model.merge_and_unload().save_pretrained(FOLDER)",
    "scale": f"they are quantised: {_ITS_CONFIG}, with its quantization_config",
    "absmax": f"they are quantised: {_ITS_CONFIG}, with its quantization_config",
}


def check_weights(folder: Path, config: PreTrainedConfig, dtype: torch.dtype | str, is_spread: bool) -> None:
    """Raises InputError where the weights of a local folder cannot be those of the configuration, or do not fit.

    A configuration with more layers than there are tensors, or a larger embedding than all of them together, is
    refused here, because transformers would first make a model of that size. `is_spread`: weights go where a device
    map says, so that the memory of this machine does not count.
    """
    is_plain = getattr(config, "quantization_config", None) is None
    shapes = [shape for file in sorted(folder.glob("*.safetensors")) for shape in _shapes(file, is_plain).values()]
    elements = sum(map(prod, shapes))
    _check_folder(folder, config, len(shapes), elements)
    if not is_spread:
        size = getattr(torch, str(dtype).removeprefix("torch."), torch.float32).itemsize
        fix = 'use dtype="bfloat16" or device_map="auto"'
        check_memory(size * elements, f"the weights of {folder} in {dtype}", fix)


@refusing
def _check_folder(folder: Path, config: PreTrainedConfig, tensors: int, elements: int) -> Iterator[str]:
    if (folder / "adapter_config.json").is_file():
        yield f"{folder} holds a model and an adapter; {_FIXES['lora_']}"
    read = _files_read(folder)
    unread = sorted({file.name for file in folder.glob("model-*-of-*.safetensors")} - {file.name for file in read})
    if read and unread:
        yield f"{unread[0]} of {folder} belongs to no model that is read there; remove it, or save it again"
    text = config.get_text_config(decoder=True)
    layers, width, vocab = (getattr(text, name, 0) for name in ("num_hidden_layers", "hidden_size", "vocab_size"))
    if not all(isinstance(size, int) for size in (layers, width, vocab)):
        return  # transformers says what is wrong with them
    if not 0 < layers <= tensors or 0 < 8 * elements < width * vocab:  # 8: quantised weights are packed
        yield f"{folder}/config.json describes {layers:,} layers of width {width:,}, for {tensors} tensors"


@refusing
def check_read_whole(source: str | Path, model: PreTrainedModel, loading: Mapping[str, Any]) -> Iterator[str]:
    """Raises InputError for parameters without a tensor, and for tensors that no parameter takes.

    Not for tensors that transformers leaves out for a reason: constants that a model computes itself (rotations,
    masks), those that its class names, and layers that predict later tokens. loading: what `from_pretrained` says.
    """
    file = Path(source)
    from transformers.integrations.gguf import read_gguf_metadata

    shapes = dict.fromkeys(read_gguf_metadata(str(file))[1], ()) if file.is_file() else _shapes_of(source)
    surplus = [*loading["unexpected_keys"], *_layers_beyond(shapes, model)]
    surplus += _not_in_gguf_map(shapes, model) if file.is_file() else []
    surplus = sorted({name for name in surplus if not _is_constant(name, shapes, model)})
    surplus = [name for name in surplus if not _predicts_later_tokens(name, shapes, model.config)]
    fix = next((fix for mark, fix in _FIXES.items() if any(mark in name for name in surplus)), None)
    absent = sorted({*loading["missing_keys"], *(key for key, *_ in loading["mismatched_keys"])})
    if absent and "lora_" not in "".join(surplus):
        yield f"{source} has no fitting weights for {', '.join(absent[:3])}; save the whole model again"
    surplus = surplus or next((names[1:] for names in _by_parameter(shapes, model).values() if len(names) > 1), [])
    if surplus:
        more = f" and {len(surplus) - 3} more" if len(surplus) > 3 else ""
        fix = "take the model's own weights, as safetensors" if file.is_file() else fix or _ITS_CONFIG
        yield f"{source} holds {', '.join(surplus[:3])}{more}, which the model does not take; {fix}"


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
    again = "download or save the model again"
    with refusal(f"{file} holds no whole weights", again, (SafetensorError, OSError)), safe_open(file, "pt") as tensors:
        slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118  no mapping
        for name, part in slices.items():
            kind = part.get_dtype()
            if kind == "C64" or (is_plain and kind in _WHOLE and name.endswith("weight")):  # not a mask
                raise InputError(f"{file} holds {name} as {kind}, which is not a weight; save it as F32")
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


def _layers_beyond(names: Shapes, model: PreTrainedModel) -> Iterator[str]:
    """Tensors of layers that the model lacks, named as those of its layers but for the number."""
    known = model.state_dict().keys()
    patterns = {_without_numbers(name) for name in known}
    layers = {name[: end.end()] for name in known for end in re.finditer(r"\.\d+\.", name)}
    for name in names:
        full = name if _without_numbers(name) in patterns else f"{model.base_model_prefix}.{name}"
        ends = [full[: end.end()] for end in re.finditer(r"\.\d+\.", full)]
        if _without_numbers(full) in patterns and any(end not in layers for end in ends):
            yield name


def _without_numbers(name: str) -> str:
    return re.sub(r"\.\d+\.", ".N.", name)


def _is_constant(name: str, shapes: Shapes, model: PreTrainedModel) -> bool:
    """Tells if a tensor is what the model computes itself: a buffer, a rotation, or a mask `1 1 query key`."""
    buffers = dict(model.named_buffers())
    shape = shapes.get(name, ())
    is_mask = len(shape) == 4 and shape[:2] == (1, 1) and shape[2] == shape[3] and name.endswith("bias")
    return is_mask or bool(_CONSTANT.search(name)) or name in buffers or f"{model.base_model_prefix}.{name}" in buffers


def _predicts_later_tokens(name: str, names: Shapes, config: PreTrainedConfig) -> bool:
    """Whether a tensor is of a layer after the last that the configuration counts as predicting later tokens (MTP)."""
    text = config.get_text_config(decoder=True)
    depth, count = getattr(text, "num_hidden_layers", 0), max(getattr(text, key, None) or 0 for key in _MTP)
    layer = re.match(r"(?:.*?\.)?(\d+)\.", name)
    if layer is None or not depth <= int(layer[1]) < depth + count:
        return False
    return any(other.startswith(f"{layer[0]}eh_proj") for other in names)  # it joins the token with the residual
