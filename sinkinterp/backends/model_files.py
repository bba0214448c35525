"""The model and the tokenizer of a name, a folder or a GGUF file, read by transformers, whole or refused."""

from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoTokenizer, GgufConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..errors import InputError
from ..seals import verify, verifying
from . import gguf
from .configuration import check_fits_memory, checked_config, class_of, decoder_start
from .places import located
from .weight_files import check_weights, surplus_layer

DeviceMap = str | dict[str, int | str | torch.device] | None


def load_model(
    source: str | Path, dtype: torch.dtype | str = torch.float32, device_map: DeviceMap = None
) -> PreTrainedModel:
    """The transformers model of a name, a folder or a GGUF file. Raises InputError where it cannot be loaded whole."""
    source = located(source)
    if gguf.is_gguf(source):
        place = {**gguf.reading(Path(source)), "quantization_config": GgufConfig(dequantize=True)}
        fix = "download it again, or take the model's own weights"
    else:
        _check_folder(source)
        place = {"pretrained_model_name_or_path": source, "use_safetensors": True}
        fix = "give the name of a model on the Hub, with a network, or a local folder made by save_pretrained"
    try:
        with verifying(Path(source), "*config.json", "model*"):
            config = checked_config(source)
            if config is not None and Path(source).is_dir():
                check_weights(Path(source), config, dtype, is_spread=device_map is not None)
            elif config is not None and device_map is None:
                check_fits_memory(config)
            model, loading = class_of(source).from_pretrained(
                **place,
                dtype=dtype,
                device_map=device_map,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are refused below, by name
            )
    except InputError:
        raise
    except Exception as error:  # a damaged folder or file can fail in any way
        raise InputError(f"cannot load {source}: {_first_line(error)} Fix: {fix}") from error
    absent = sorted({*loading["missing_keys"], *(key for key, *_ in loading["mismatched_keys"])})
    if absent:
        raise InputError(f"{source} has no fitting weights for {', '.join(absent[:3])}; save the whole model again")
    layer = surplus_layer(loading["unexpected_keys"], model.state_dict())
    if layer is not None:
        raise InputError(
            f"{source} has weights for more layers than its config.json, such as {layer}; correct config.json"
        )
    return model


def load_tokenizer(source: str | Path) -> PreTrainedTokenizerBase | None:
    """The tokenizer beside a model, or in its GGUF file; None where there is none.

    In an encoder-decoder model, its BOS is the token that the decoder starts with, whatever the tokenizer says.
    """
    source = located(source)
    if not _has_tokenizer(Path(source)):
        return None
    place = gguf.reading(Path(source)) if gguf.is_gguf(source) else {"pretrained_model_name_or_path": source}
    verify(Path(source), "*token*", "config.json")
    try:
        tokenizer = AutoTokenizer.from_pretrained(**place, trust_remote_code=False)
        start = decoder_start(source)
    except Exception as error:  # a damaged file can fail in any way
        raise InputError(f"cannot load the tokenizer of {source}: {_first_line(error)}; save it again") from error
    if start is not None:
        tokenizer.bos_token = tokenizer.convert_ids_to_tokens(start)
    return tokenizer


def words_of(source: str | Path) -> Callable[[int], str]:
    """What gives a token id its text; its number where the model has no tokenizer."""
    tokenizer = load_tokenizer(source)
    return str if tokenizer is None else lambda token: tokenizer.decode([token])


def _has_tokenizer(path: Path) -> bool:
    """Whether a GGUF file or a local folder holds a tokenizer; of a model on the Hub this is not known, so yes."""
    if gguf.is_gguf(path):
        return gguf.has_tokenizer(path)
    return not path.is_dir() or any(path.glob("tokenizer*"))


def _check_folder(source: str | Path) -> None:
    folder = Path(source)
    if not folder.exists() and str(source).startswith((".", "/", "~")):
        raise InputError(f"there is no folder {folder}; check the path")
    if folder.exists() and not (folder / "config.json").is_file():
        raise InputError(f"{folder} holds no config.json, so it is no model; give a folder made by save_pretrained")
    if folder.exists() and not any(folder.glob("*.safetensors")):
        raise InputError(f"{folder} holds no .safetensors weights; load and save the model with transformers once")


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = " ".join(lines[:2]) if lines and lines[0].endswith(":") else "".join(lines[:1])
    return first if " " in first else f"{type(error).__name__} {first}".strip()
