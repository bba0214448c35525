"""Checkpoints of a run: written whole or not at all, and read back bit for bit."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.optim import Optimizer
from transformers import PreTrainedConfig, PreTrainedModel

from ..errors import InputError
from ..files import remove_drafts, remove_whole, replacing
from ..spec import Spec
from .distributed import full_tensor, sharded_like

KEPT = 2  # the newest checkpoints of a run, which stay on disk
MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # AdamW's state of one parameter
History = list[dict[str, Any]]


@dataclass(frozen=True)
class State:
    """The content of a checkpoint: full tensors by name, however many processes train."""

    config: PreTrainedConfig
    weights: dict[str, torch.Tensor]
    moments: dict[str, torch.Tensor]


def folder_of(run: Path, step: int) -> Path:
    """The folder of the checkpoint after `step` steps."""
    return run / f"step-{step:07d}"


def latest(run: Path) -> int:
    """The step of the newest checkpoint; 0 if there is none."""
    return max((int(p.name.removeprefix("step-")) for p in run.glob("step-*")), default=0)


def opened(run: Path, recipe: Spec) -> int:
    """The step of the newest checkpoint in `run`, after removing the drafts that a killed process left.

    Only the process that holds the run's lock may call this. Raises InputError if the checkpoint belongs to another
    recipe; the message names the settings that differ.
    """
    remove_drafts(run)
    step = latest(run)
    if step:
        _check_same(run, json.loads((folder_of(run, step) / "recipe.json").read_text()), recipe)
    return step


def state_of(model: PreTrainedModel, optimizer: Optimizer, kept: bool = True) -> State:
    """The state of a model and its optimiser; its tensors are left out unless `kept`.

    If the model is sharded, all processes must call this together.
    """
    return State(model.config, _gathered(_weights(model), kept), _gathered(_moments(model, optimizer), kept))


def save(run: Path, step: int, recipe: Spec, state: State, history: History) -> None:
    """Writes the checkpoint of `step`, then removes all but the newest two.

    Raises InputError if it cannot be written, as on a full disk; the older checkpoints stay.
    """
    fix = f"make room, then the same command goes on from step {latest(run)}"
    with replacing(folder_of(run, step), fix) as draft:
        draft.mkdir()
        _write(draft, recipe, state, history)
    for old in sorted(run.glob("step-*"))[:-KEPT]:
        remove_whole(old)


def restore(run: Path, step: int, model: PreTrainedModel, optimizer: Optimizer) -> History:
    """Puts model and optimiser into their state after `step` steps. Returns the history up to there."""
    folder = folder_of(run, step)
    fill(folder, model)
    moments = load_file(folder / "optimizer.safetensors")
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parts = {part: sharded_like(moments[f"{name}.{part}"], parameter) for part in MOMENTS}
            optimizer.state[parameter] = {part: tensor.clone() for part, tensor in parts.items()}
    return history_of(folder)


@torch.no_grad()
def fill(folder: Path, model: PreTrainedModel) -> None:
    """Copies the weights of a checkpoint into a model of the same shape."""
    weights = load_file(folder / "model.safetensors")
    for name, tensor in _weights(model):
        tensor.copy_(sharded_like(weights[name], tensor))


def history_of(folder: Path) -> History:
    """The evaluations of the run up to this checkpoint, a row each."""
    return json.loads((folder / "history.json").read_text())


def _write(draft: Path, recipe: Spec, state: State, history: History) -> None:
    """Writes every file of a checkpoint."""
    state.config.save_pretrained(draft)
    save_file(state.weights, draft / "model.safetensors", {"format": "pt"})
    save_file(state.moments, draft / "optimizer.safetensors")
    (draft / "recipe.json").write_text(json.dumps(recipe.to_dict(), indent=1))
    (draft / "history.json").write_text(json.dumps(history))


def _gathered(named: Iterator[tuple[str, torch.Tensor]], kept: bool) -> dict[str, torch.Tensor]:
    """Full tensors by name, on the CPU. One is gathered after the other, so that no device holds more than one."""
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in named:
        gathered = full_tensor(tensor.detach())
        if kept:
            tensors[name] = gathered.cpu()
    return tensors


def _weights(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Weights by name, each once: tied weights under their first name."""
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            yield name, tensor
        seen.add(id(tensor))


def _moments(model: PreTrainedModel, optimizer: Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    for name, parameter in model.named_parameters():
        for part, value in optimizer.state.get(parameter, {}).items():
            yield f"{name}.{part}", value


def _check_same(run: Path, stored: dict[str, Any], recipe: Spec) -> None:
    """Raises InputError unless the stored recipe is this one."""
    theirs, ours = _flat(Spec.from_dict(stored).to_dict()), _flat(recipe.to_dict())
    keys = [key for key in sorted({*theirs, *ours}) if theirs.get(key) != ours.get(key)]
    differences = [f"{key} is {theirs.get(key)} there, {ours.get(key)} here" for key in keys]
    if differences:
        more = f" and {len(differences) - 4} more" if len(differences) > 4 else ""
        raise InputError(
            f"{run} holds a run of another recipe: {', '.join(differences[:4])}{more}; give another folder, "
            "or the same settings"
        )


def _flat(nested: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested dict as one level of dotted keys."""
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat
