"""GGUF files: what transformers reads of them, dequantised to a plain model."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import InputError


def is_gguf(source: object) -> bool:
    """Whether a source names a GGUF file, by its ending."""
    return isinstance(source, str | Path) and Path(source).suffix == ".gguf"


def reading(file: Path) -> dict[str, Any]:
    """Arguments of `from_pretrained` that read a GGUF file: its folder and its name.

    Raises InputError where there is no such file, it is not GGUF, or the package `gguf` is absent.
    """
    metadata_of(file)
    return {"pretrained_model_name_or_path": file.resolve().parent, "gguf_file": file.resolve().name}


def description(file: Path) -> str:
    """What a report says of weights from a GGUF file, such as "GGUF Q4_1, dequantised". Raises as `reading`."""
    quantisation = metadata_of(file).get("general.file_type")
    from gguf import LlamaFileType

    named = quantisation in LlamaFileType._value2member_map_
    name = f" {LlamaFileType(quantisation).name.split('_', 1)[1]}" if named else ""  # ALL_F32, MOSTLY_Q4_1
    return f"GGUF{name}, dequantised"


def has_tokenizer(file: Path) -> bool:
    """Whether a GGUF file holds a tokenizer beside its weights. Raises as `reading`."""
    return "tokenizer.ggml.tokens" in metadata_of(file)


def metadata_of(file: Path) -> dict[str, Any]:
    """The metadata of a GGUF file, arrays of strings as their lengths. Raises as `reading`."""
    if not file.is_file():
        raise InputError(f"there is no file {file}; check the path")
    if find_spec("gguf") is None:
        raise InputError(f"{file} cannot be read without the package gguf; pip install 'sinkinterp[gguf]'")
    from transformers.integrations.gguf import read_gguf_metadata

    try:
        metadata, _ = read_gguf_metadata(str(file))
    except Exception as error:  # a damaged file can fail in any way
        raise InputError(f"{file} is no GGUF file, or is damaged; download it again") from error
    return metadata
