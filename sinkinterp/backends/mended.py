"""Adapters that mend the sink of a transformers model: added slots and changed weights, in a folder of their own."""

import hashlib
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..errors import InputError
from ..seals import Damaged, hashes_in, read_record, seal, verify, write_record
from ..spec import Spec
from .added_slots import WITH_SLOTS, AddedSlots, add_slots, remove_slots

RECORD, TENSORS = "mended.json", "mended.safetensors"


@dataclass(frozen=True)
class Trained(Spec):
    """Which weights of a model are trained beside its slots."""

    def prepare(self, model: PreTrainedModel) -> None:
        """Adds what it trains to the model, and lets it and the slots alone have gradients."""
        raise NotImplementedError

    def undo(self, model: PreTrainedModel) -> None:
        """Takes off what `prepare` has added."""


@dataclass(frozen=True)
class AllWeights(Trained):
    """Every weight."""

    def prepare(self, model: PreTrainedModel) -> None:
        model.requires_grad_(True)


@dataclass(frozen=True)
class SlotsAlone(Trained):
    """No weight."""

    def prepare(self, model: PreTrainedModel) -> None:
        _train_slots_alone(model)


@dataclass(frozen=True)
class Lora(Trained):
    """Matrices of a low rank beside all linear maps of the blocks, by peft (arXiv:2106.09685)."""

    rank: int = 16

    def prepare(self, model: PreTrainedModel) -> None:
        try:
            from peft import LoraConfig, inject_adapter_in_model
        except ImportError as error:
            raise InputError("LoRA needs peft; pip install peft, or train all weights or none") from error
        config = LoraConfig(r=self.rank, lora_alpha=self.rank, target_modules="all-linear")
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            inject_adapter_in_model(config, cast(Any, model))
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("lora_" in name or f".{WITH_SLOTS}." in name)

    def undo(self, model: PreTrainedModel) -> None:
        for name, module in [*model.named_modules()]:
            if hasattr(module, "lora_A"):
                owner, _, child = name.rpartition(".")
                setattr(model.get_submodule(owner), child, module.base_layer)


def _train_slots_alone(model: PreTrainedModel) -> None:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(f".{WITH_SLOTS}." in name)


@torch.no_grad()
def fingerprint(model: PreTrainedModel) -> str:
    """The hash of all weights in bfloat16, which is one for a model that is loaded in fp32 or in bf16."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.named_parameters()):
        digest.update(f"{name}{tuple(weight.shape)}".encode())
        digest.update(weight.to("cpu", torch.bfloat16).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def write_adapter(folder: Path, model: PreTrainedModel, slots: AddedSlots, trained: Trained, base: str) -> None:
    """Writes what was trained of a mended model, and its seal, into a draft of a folder.

    base: the name of the model that was mended, and after a space its fingerprint.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: p.detach().cpu().contiguous() for name, p in model.named_parameters() if p.requires_grad}
    save_file(tensors, folder / TENSORS, {"format": "pt"})
    name, _, sha256 = base.rpartition(" ")
    of = {"base": sha256}
    write_record(folder / RECORD, {"base": name, "slots": slots.to_dict(), "trained": trained.to_dict()}, of)
    seal(folder, of)


def base_of_mended(folder: Path) -> str:
    """The name or folder of the model that an adapter mends. Raises Damaged where the record was changed."""
    return str(read_record(folder / RECORD)["base"])


def with_adapter(model: PreTrainedModel, folder: Path | str) -> Any:
    """The model itself, changed by the adapter in a folder until `without_adapter` takes it off; see `si.mend`.

    Raises InputError for a model that has an adapter, and where the folder is damaged or mends another model.
    """
    folder = Path(folder)
    if not isinstance(model, PreTrainedModel):
        raise InputError(f"an adapter mends a transformers model; got a {type(model).__name__}")
    if model in _UNDO:
        raise InputError(f"this {type(model).__name__} has an adapter; call si.without_adapter(model) first")
    if not (folder / RECORD).is_file():
        raise InputError(f"{folder} holds no {RECORD}, so it mends no model; give what sinkinterp mend wrote")
    verify(folder)
    record = read_record(folder / RECORD)
    slots, trained = AddedSlots.from_dict(record["slots"]), Trained.from_dict(record["trained"])
    try:
        hashes_in(folder, {"base": fingerprint(model)})
    except Damaged as error:
        raise InputError(f"{folder} mends other weights than these; load {record['base']}") from error
    with ExitStack() as undo:
        undo.callback(remove_slots, model, add_slots(model, slots))
        undo.callback(_set_gradients, model, {name for name, p in model.named_parameters() if p.requires_grad})
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
        raise InputError(f"no parameter takes {unknown[0]} of the adapter; use the version of peft that wrote it")
    for name, tensor in tensors.items():
        undo.callback(setattr, parameters[name], "data", parameters[name].data)
        parameters[name].data = tensor.to(parameters[name])


def _set_gradients(model: nn.Module, names: set[str]) -> None:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in names)


_UNDO: WeakKeyDictionary[nn.Module, ExitStack] = WeakKeyDictionary()
