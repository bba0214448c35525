"""What the weights in a folder hold, by their headers alone, against what the configuration asks for."""

import re
from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedConfig

from ..checks import check_memory
from ..errors import InputError


def check_weights(folder: Path, config: PreTrainedConfig, dtype: torch.dtype | str, is_spread: bool) -> None:
    """Raises InputError where the weights of a local folder cannot be those of the configuration, or do not fit.

    A configuration with more layers than there are tensors, or a larger embedding than all of them together, is
    refused here, because transformers would first make a model of that size. `is_spread`: weights go where a device
    map says, so that the memory of this machine does not count.
    """
    shapes = [shape for file in sorted(folder.glob("*.safetensors")) for shape in _shapes(file)]
    elements = sum(map(prod, shapes))
    text = config.get_text_config(decoder=True)
    layers, width, vocab = (getattr(text, name, 0) for name in ("num_hidden_layers", "hidden_size", "vocab_size"))
    if not all(isinstance(size, int) for size in (layers, width, vocab)):
        return  # transformers says what is wrong with them
    if layers < 1:
        raise InputError(f"the config.json of {folder} describes {layers} layers; take the one of the whole model")
    if layers > len(shapes) or 0 < 8 * elements < width * vocab:  # 8: quantised weights are packed
        raise InputError(
            f"the config.json of {folder} describes {layers:,} layers of width {width:,} and {vocab:,} symbols, more "
            f"than its {len(shapes)} tensors with {elements:,} numbers; take the config.json that belongs to them"
        )
    if not is_spread:
        size = getattr(torch, str(dtype).removeprefix("torch."), torch.float32).itemsize
        check_memory(
            size * elements, f"the weights of {folder} in {dtype}", "use --dtype bfloat16 or --device-map auto"
        )


def surplus_layer(surplus: Iterable[str], known: Iterable[str]) -> str | None:
    """A tensor of a layer that the model lacks: its name is that of a tensor of the model but for the number."""
    patterns = {_without_numbers(name) for name in known}
    return next((name for name in sorted(surplus) if _without_numbers(name) in patterns), None)


def _without_numbers(name: str) -> str:
    return re.sub(r"\.\d+\.", ".N.", name)


def _shapes(file: Path) -> Sequence[Sequence[int]]:
    try:
        with safe_open(file, "pt") as tensors:
            return [tensors.get_slice(name).get_shape() for name in tensors.keys()]  # noqa: SIM118  no mapping
    except (SafetensorError, OSError) as error:
        raise InputError(f"{file} holds no whole weights ({error}); download or save the model again") from error
