"""Adapters, in folders or on the Hub: those of peft (LoRA and others), and those that mend the sink of a model.

The latter are added slots and changed weights.
"""

import hashlib
import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from huggingface_hub import snapshot_download
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import cached_file

from ..checks import InputError, check_installed, instance_of, refusal
from ..data.hub import asking_hub
from ..files import SEAL, Of, check_is_file, owner, path_of, read_record, sealed_hashes, verify, write_record
from ..spec import Spec
from .added_slots import WITH_SLOTS, AddedSlots, add_slots, remove_slots
from .named_models import located

RECORD, TENSORS = "mended.json", "mended.safetensors"
_ADAPTER, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # of peft


class Trained(Spec):
    """Which weights of a model are trained beside its slots."""

    part: ClassVar[str] = f".{WITH_SLOTS}."  # of the names of these weights

    def prepare(self, model: PreTrainedModel) -> None:
        """Adds the weights that it trains to the model. They and the slots alone then have gradients."""
        _set_gradients(model, lambda name: self.part in name or Trained.part in name)

    def undo(self, model: PreTrainedModel) -> None:
        """Takes off what `prepare` has added."""


class AllWeights(Trained):
    """Every weight."""

    part = ""


class SlotsAlone(Trained):
    """No weight."""


class Lora(Trained):
    """Matrices of a low rank beside all linear maps of the blocks, by peft (arXiv:2106.09685)."""

    part = "lora_"
    rank: int = 16

    def prepare(self, model: PreTrainedModel) -> None:
        check_installed("peft", "LoRA needs it; pip install peft, or train all weights or none")
        import peft

        config = peft.LoraConfig(r=self.rank, lora_alpha=self.rank, target_modules="all-linear")
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            peft.inject_adapter_in_model(config, model)
        super().prepare(model)

    def undo(self, model: PreTrainedModel) -> None:
        for name, module in [*model.named_modules()]:
            if hasattr(module, "lora_A"):
                owner, _, child = name.rpartition(".")
                setattr(model.get_submodule(owner), child, module.base_layer)
        del model.peft_config


@torch.no_grad()
def fingerprint(model: PreTrainedModel) -> str:
    """The hash of all weights in bfloat16, which is one for a model that is loaded in fp32 or in bf16."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.named_parameters()):
        digest.update(f"{name}{tuple(weight.shape)}".encode())
        digest.update(weight.to("cpu", torch.bfloat16).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def write_adapter(folder: Path, model: PreTrainedModel, slots: AddedSlots, trained: Trained, base: str, of: Of) -> None:
    """Writes what was trained of a mended model into a folder that is sealed afterwards.

    base: the name of the model that was mended; `of` holds its fingerprint.
    """
    tensors = {name: p.detach().cpu().contiguous() for name, p in model.named_parameters() if p.requires_grad}
    save_file(tensors, folder / TENSORS, {"format": "pt"})
    write_record(folder / RECORD, {"base": base, "slots": slots.to_dict(), "trained": trained.to_dict()}, of)


def with_adapter(model: PreTrainedModel, folder: Path | str) -> Any:
    """The model itself, changed by the adapter in a folder until `without_adapter` takes it off; see `si.mend`.

    Raises InputError for a model that has an adapter, and where the folder is damaged or mends another model.
    """
    folder = path_of(folder, "the folder of an adapter")
    instance_of(model, PreTrainedModel, "an adapter mends a transformers model")
    if model in _UNDO:
        raise InputError(f"this {type(model).__name__} has an adapter; call si.without_adapter(model) first")
    check_is_file(folder / RECORD)
    verify(folder)
    record = read_record(folder / RECORD)
    slots, trained = AddedSlots.from_dict(record["slots"]), Trained.from_dict(record["trained"])
    own = fingerprint(model)
    sealed_hashes(folder, {})  # raises Damaged without a seal
    if owner(folder).get("base", own) != own:
        raise InputError(f"{folder} mends other weights than these; load {record['base']}")
    with ExitStack() as undo:
        undo.callback(remove_slots, model, add_slots(model, slots))
        undo.callback(_set_gradients, model, {n: p.requires_grad for n, p in model.named_parameters()}.get)
        trained.prepare(model)
        undo.callback(trained.undo, model)
        _exchange(model, load_file(folder / TENSORS), undo)
        _UNDO[model] = undo.pop_all()
    return model


def without_adapter(model: PreTrainedModel) -> Any:
    """The model itself, bit for bit as it was before `with_adapter`. Raises InputError where it has no adapter."""
    undo = _UNDO.pop(model, None) if isinstance(model, PreTrainedModel) else None
    if undo is None:
        raise InputError(f"this {type(model).__name__} has no adapter")
    undo.close()
    return model


def _exchange(model: PreTrainedModel, tensors: dict[str, Tensor], undo: ExitStack) -> None:
    """Puts tensors into the parameters of their names."""
    parameters = dict(model.named_parameters())
    if unknown := sorted(tensors.keys() - parameters.keys()):
        raise InputError(f"no parameter takes {unknown[0]} of the adapter")
    for name, tensor in tensors.items():
        undo.callback(setattr, parameters[name], "data", parameters[name].data)
        parameters[name].data = tensor.to(parameters[name])


def _set_gradients(model: nn.Module, is_trained: Callable[[str], bool | None]) -> None:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(bool(is_trained(name)))


_UNDO: WeakKeyDictionary[nn.Module, ExitStack] = WeakKeyDictionary()


# Adapters of peft, and which of the two a folder holds


def adapter_folder(source: str | Path) -> Path | None:
    """The folder of an adapter: the user's, or that of the download from the Hub; None for any other source."""
    folder = Path(source)
    if not folder.exists():
        errors = ("missing_entries", "gated_repo", "connection_errors")
        silent = {f"_raise_exceptions_for_{error}": False for error in errors}
        with asking_hub(source):
            try:
                configs = (cached_file(str(source), name, **silent) for name in (_ADAPTER, RECORD))
                config = next(filter(None, configs), None)
            except OSError:  # such as a name that the Hub does not know: reading the model says what is wrong
                config = None
            if config is None:
                return None
            folder = Path(
                snapshot_download(str(source), allow_patterns=["adapter_*", "mended.*", SEAL, "*token*", "config.json"])
            )
    with refusal(f"{folder} cannot be read", of=PermissionError):
        is_adapter = (folder / _ADAPTER).is_file() and not (folder / "config.json").is_file()
        return folder if is_adapter or (folder / RECORD).is_file() else None


def base_of(folder: Path) -> str:
    """The name or folder of the model that an adapter's folder names.

    Raises InputError where it names none, or one that is an adapter itself.
    """
    if (folder / RECORD).is_file():
        return str(read_record(folder / RECORD)["base"])
    file = folder / _ADAPTER
    with refusal(f"cannot read {file}", of=(OSError, ValueError, AttributeError)):
        base = json.loads(file.read_text(encoding="utf-8")).get("base_model_name_or_path")
    if not base or not isinstance(base, str):
        raise InputError(f"{file} names no base_model_name_or_path")
    with refusal(f"{folder} is an adapter of a model that is not here", of=(InputError,)):
        place = located(base)
    if adapter_folder(place):
        raise InputError(f"{file} names {base}, which is an adapter itself")
    return base


def merged(model: PreTrainedModel, folder: Path) -> Any:
    """The model with the adapter of a folder: peft's added to its weights, that of `si.mend` beside them.

    Raises InputError where peft is not installed, where the adapter does not fit, and where a tensor of it is missing
    or is not taken.
    """
    if (folder / RECORD).is_file():
        return with_adapter(model, folder)
    fix = f"{folder} is an adapter; pip install peft, or merge it with peft and save the whole model"
    check_installed("peft", fix)
    import peft

    if (kind := peft.PeftConfig.from_pretrained(str(folder))).is_prompt_learning:
        what = f"{folder} is an adapter of {kind.peft_type.value.lower()}, which adds keys that are no tokens of a text"
        raise InputError(what)
    check_is_file(folder / _WEIGHTS)
    with refusal(f"the adapter {folder} does not fit {type(model).__name__}"):  # that of another model fails in any way
        adapted = peft.PeftModel.from_pretrained(model, str(folder))
        taken = peft.get_peft_model_state_dict(adapted, save_embedding_layers=False).keys()
        with safe_open(folder / _WEIGHTS, "pt") as tensors:
            names = {*tensors.keys()}
        wrong = sorted(taken - names) or sorted(names - taken - adapted.state_dict().keys())
        if wrong:
            raise ValueError(f"{'it lacks' if wrong[0] in taken else 'no part takes'} {wrong[0]}")
        return adapted.merge_and_unload()
