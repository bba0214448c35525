"""Adapters (LoRA and others of peft), in folders or on the Hub: the model that they belong to, with them merged in."""

import json
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from safetensors import safe_open
from transformers import PreTrainedModel
from transformers.utils import cached_file

from ...errors import InputError
from ..mended import RECORD, base_of_mended, with_adapter
from .named_models import located

_ADAPTER, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def adapter_folder(source: str | Path) -> Path | None:
    """The folder of an adapter: the user's, or that of the download from the Hub; None for any other source."""
    folder = Path(source)
    if not folder.exists():
        errors = ("missing_entries", "gated_repo", "connection_errors")
        silent = {f"_raise_exceptions_for_{error}": False for error in errors}
        try:
            config = cached_file(str(source), _ADAPTER, **silent)
        except OSError:  # such as a name that the Hub does not know: reading the model says what is wrong
            config = None
        if config is None:
            return None
        folder = Path(snapshot_download(str(source), allow_patterns=["adapter_*", "*token*", "config.json"]))
    is_adapter = (folder / _ADAPTER).is_file() and not (folder / "config.json").is_file()
    return folder if is_adapter or (folder / RECORD).is_file() else None


def base_of(folder: Path) -> str:
    """The name or folder of the model that an adapter's folder names.

    Raises InputError where it names none, or one that is an adapter itself.
    """
    if (folder / RECORD).is_file():
        return base_of_mended(folder)
    file = folder / _ADAPTER
    try:
        base = json.loads(file.read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(f"cannot read {file}: {error}; save the adapter again") from error
    if not base or not isinstance(base, str):
        raise InputError(f"{file} names no base_model_name_or_path; write the model there that it belongs to")
    if adapter_folder(located(base)):
        raise InputError(f"{file} names {base}, which is an adapter itself; write a whole model there")
    return base


def merged(model: PreTrainedModel, folder: Path) -> Any:
    """The model with the adapter of a folder: peft's added to its weights, that of `si.mend` beside them.

    Raises InputError where peft is not installed, where the adapter does not fit, and where a tensor of it is missing
    or is not taken.
    """
    if (folder / RECORD).is_file():
        return with_adapter(model, folder)
    try:
        from peft import PeftModel, get_peft_model_state_dict
    except ImportError as error:
        fix = "pip install peft, or merge it with peft and save the whole model"
        raise InputError(f"{folder} is an adapter, which cannot be read without peft; {fix}") from error
    if not (folder / _WEIGHTS).is_file():
        raise InputError(f"{folder} holds no {_WEIGHTS}; save the adapter with safe_serialization=True")
    try:
        adapted = PeftModel.from_pretrained(model, str(folder))
        taken = get_peft_model_state_dict(adapted, save_embedding_layers=False).keys()
        with safe_open(folder / _WEIGHTS, "pt") as tensors:
            names = {*tensors.keys()}
        wrong = sorted(taken - names) or sorted(names - taken - adapted.state_dict().keys())
        if wrong:
            raise ValueError(f"{'it lacks' if wrong[0] in taken else 'no part takes'} {wrong[0]}")
        return adapted.merge_and_unload()
    except Exception as error:  # an adapter of another model can fail in any way
        reason = str(error).strip().partition("\n")[0]
        raise InputError(
            f"the adapter {folder} does not fit {type(model).__name__}: {reason}; check its base"
        ) from error
