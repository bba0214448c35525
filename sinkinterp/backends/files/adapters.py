"""Folders of adapters (LoRA and others of peft): the model that they belong to, and that model with them merged in."""

import json
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ...errors import InputError
from .named_models import located

_ADAPTER = "adapter_config.json"


def base_of(source: str | Path) -> str:
    """The name or folder of the model that an adapter's folder names; empty for any other source.

    Raises InputError where it names none, or one that is an adapter itself.
    """
    file = Path(source) / _ADAPTER
    if not file.is_file() or (Path(source) / "config.json").is_file():
        return ""
    try:
        base = json.loads(file.read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(f"cannot read {file}: {error}; save the adapter again") from error
    if not base or not isinstance(base, str):
        raise InputError(f"{file} names no base_model_name_or_path; write the model there that it belongs to")
    if (Path(located(base)) / _ADAPTER).is_file():
        raise InputError(f"{file} names {base}, which is an adapter itself; write a whole model there")
    return base


def merged(model: PreTrainedModel, folder: Path) -> Any:
    """The model with the adapter of a folder added to its weights.

    Raises InputError where peft is not installed, and where the adapter does not fit.
    """
    try:
        from peft import PeftModel
    except ImportError as error:
        fix = "pip install peft, or merge it with peft and save the whole model"
        raise InputError(f"{folder} is an adapter, which cannot be read without peft; {fix}") from error
    if not (folder / "adapter_model.safetensors").is_file():
        raise InputError(f"{folder} holds no adapter_model.safetensors; save the adapter with safe_serialization=True")
    try:
        return PeftModel.from_pretrained(model, str(folder)).merge_and_unload()
    except Exception as error:  # an adapter of another model can fail in any way
        reason = str(error).strip().partition("\n")[0]
        raise InputError(
            f"the adapter {folder} does not fit {type(model).__name__}: {reason}; check its base"
        ) from error
