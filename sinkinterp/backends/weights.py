"""Checks that a file or a folder holds a whole model, and that a model has taken every tensor of it.

Before a model is made, names, first bytes and headers are read, and no weights.
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
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

from ..checks import READABLE, InputError, check_installed, check_memory, refusal, refusing
from ..files import check_is_file

_SAVED = "give a name on the Hub, or a folder that save_pretrained made, with config.json and .safetensors weights"


def is_gguf(source: str | Path) -> bool:
    """Tells if a source names a GGUF file, by its ending, or is one, by its first bytes: Ollama's have no ending."""
    if Path(source).suffix.lower() == ".gguf":
        return True
    if not os.path.isfile(source) or not os.access(source, os.R_OK):
        return False
    with open(source, "rb") as content:
        return content.read(4) == b"GGUF"


def check_file(file: Path) -> None:
    """Raises InputError for a file that is not GGUF."""
    if file.is_file() and not is_gguf(file):
        raise InputError(f"{file} is a file, and not GGUF; {_SAVED}")


def _instead_of(folder: Path) -> str:
    """The newest model inside a folder, or what else is there."""
    inside = [*folder.glob("*/config.json"), *folder.glob("snapshots/*/config.json")]
    models = [file.parent for file in inside if '"model_type"' in file.read_text(errors="replace")]
    if models := sorted((*models, *folder.glob("*.gguf")), key=in_order):
        return f"give a model inside it, such as {models[-1]}"
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return f"it holds {', '.join(names[:3]) or 'nothing'}{', ...' * (len(names) > 3)}; {_SAVED}"


def in_order(path: Path) -> list[tuple[int, str]]:
    """Sorts paths as people count: checkpoint-1000 behind checkpoint-500."""
    return [(int(part) if part.isdecimal() else -1, part) for part in re.split(r"(\d+)", str(path))]


@refusing
def check_folder(source: str | Path) -> Iterator[str]:
    """Why a path is not the folder of a model."""
    folder = Path(source)
    if not folder.exists() and (folder.is_symlink() or str(source).startswith((".", "/", "~"))):
        yield f"there is no folder {folder}"
    check_file(folder)
    if folder.exists() and not (folder / "config.json").is_file():
        yield f"{folder} holds no config.json, so it is not a model of transformers; {_instead_of(folder)}"
    for file in folder.glob("*") if folder.is_dir() else ():
        if file.exists() and not file.is_file() and (not file.is_dir() or file.suffix == ".safetensors"):
            yield f"{file} is not a file, and a model is made of files"
        if file.is_file() and not os.access(file, os.R_OK):
            yield f"{file} cannot be read: permission denied; {READABLE}"
    if folder.exists() and not any(folder.glob("*.safetensors")):
        yield f"{folder} holds no .safetensors weights; {_instead_of(folder)}"


def gguf_metadata(file: Path) -> dict[str, Any]:
    """The metadata of a GGUF file, arrays of strings as their lengths.

    Raises InputError if the file is absent or is not GGUF, or if the package `gguf` is absent.
    """
    check_is_file(file)
    check_installed("gguf", f"{file} is read with it; pip install gguf")
    if not hasattr(transformers, "GgufConfig"):
        raise InputError(f"transformers {transformers.__version__} does not read {file} whole; use 5.17 or newer")
    with refusal(f"{file} is not a GGUF file, or is damaged"):
        return read_gguf(file)[0]


def read_gguf(file: Path) -> tuple[dict[str, Any], Any]:
    """The metadata and the tensors' names of a GGUF file."""
    from transformers.integrations.gguf import read_gguf_metadata

    return read_gguf_metadata(str(file))


ROTATION_FACTORS = "rope_freqs.weight"  # of the frequencies of rotation, in a GGUF file


@refusing
def check_gguf(file: Path) -> Iterator[str]:
    """Why transformers would build another model than the file holds: it gives sizes that are not said defaults."""
    metadata = gguf_metadata(file)
    kind = metadata.get("general.architecture")
    sizes = {name: metadata.get(f"{kind}.{name}") for name in ("block_count", "embedding_length")}
    if lacking := [f"{kind}.{name}" for name, size in sizes.items() if not isinstance(size, int)]:
        yield f"{file} does not say how large the model is ({', '.join(lacking)})"
    layers, width = (int(size or 0) for size in sizes.values())
    least, bits = layers * width**2, 8 * file.stat().st_size  # a square matrix for each layer, of 1 bit a weight
    if least > bits:
        yield f"{file} is smaller than {layers:,} layers of {width:,} dimensions, which it says"


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
    settings = how if isinstance(how, dict) else {}
    bits = settings.get("load_in_8bit") or settings.get("load_in_4bit")  # of bitsandbytes, whose name came later
    return bool(bits) or settings.get("quant_method") in AUTO_QUANTIZATION_CONFIG_MAPPING


@refusing
def check_read_whole(source: str | Path, model: PreTrainedModel, loading: Mapping[str, Any]) -> Iterator[str]:
    """Raises InputError for parameters without a tensor, and for tensors that no parameter takes.

    Not for tensors that transformers leaves out for a reason: constants that a model computes itself (rotations,
    masks), those that its class names, and layers that predict later tokens. loading: what `from_pretrained` says.
    """
    file = Path(source)
    shapes = dict.fromkeys(read_gguf(file)[1], ()) if file.is_file() else _shapes_of(source)
    absent = sorted({*loading["missing_keys"], *(key for key, *_ in loading["mismatched_keys"])})
    if absent:
        yield f"{source} has no fitting weights for {', '.join(absent[:3])}; {_OWN}"
    unexpected = {*loading["unexpected_keys"], *(_not_in_gguf_map(shapes, model) if file.is_file() else ())}
    surplus = sorted(name for name in unexpected if not _is_left_out(name, shapes, model))
    if surplus := surplus or _second_names(shapes, model):
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


def _second_names(names: Shapes, model: PreTrainedModel) -> list[str]:
    """The tensors that transformers would take for a parameter that has one already, under another name."""
    mapping, parameters = get_model_conversion_mapping(model), model.state_dict()
    renamings = [change for change in mapping if isinstance(change, WeightRenaming)]
    converters = [change for change in mapping if isinstance(change, WeightConverter)]
    by_parameter: dict[str, list[str]] = {}
    for name in names:
        parameter, joined = rename_source_key(name, renamings, converters, model.base_model_prefix, parameters)
        if joined is None and parameter in parameters:
            by_parameter.setdefault(parameter, []).append(name)
    return next((several[1:] for several in by_parameter.values() if len(several) > 1), [])


def _is_left_out(name: str, shapes: Shapes, model: PreTrainedModel) -> bool:
    """Tells if a tensor is what the model computes itself, or belongs to a layer that predicts later tokens (MTP).

    The former are buffers, rotations, and masks `1 1 query key`. The latter are layers after the last that the
    configuration counts, one of whose tensors joins the token with the residual.
    """
    buffers, shape = dict(model.named_buffers()), shapes.get(name, ())
    is_mask = len(shape) == 4 and shape[:2] == (1, 1) and shape[2] == shape[3] and name.endswith("bias")
    if is_mask or _CONSTANT.search(name) or name in buffers or f"{model.base_model_prefix}.{name}" in buffers:
        return True
    if name == ROTATION_FACTORS:
        return (getattr(model.config, "rope_parameters", None) or {}).get("rope_type") == "llama3"
    text = model.config.get_text_config(decoder=True)
    depth, count = getattr(text, "num_hidden_layers", 0), max(getattr(text, key, None) or 0 for key in _MTP)
    layer = re.match(r"(?:.*?\.)?(\d+)\.", name)
    if layer is None or not depth <= int(layer[1]) < depth + count:
        return False
    return any(other.startswith(f"{layer[0]}eh_proj") for other in shapes)
