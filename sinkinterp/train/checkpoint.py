"""Checkpoints that are either whole or absent: written beside, flushed, then renamed into place."""

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
from ..files import remove, remove_drafts, replacing
from ..spec import Spec
from .distributed import as_held, whole

KEPT = 2  # newest checkpoints of a run that stay on disk
MOMENTS = ("step", "exp_avg", "exp_avg_sq")
History = list[dict[str, Any]]


@dataclass(frozen=True)
class State:
    """A model and its optimiser as whole tensors by name: what a checkpoint holds, however many processes train."""

    config: PreTrainedConfig
    weights: dict[str, torch.Tensor]
    moments: dict[str, torch.Tensor]


def folder_of(run: Path, step: int) -> Path:
    """Where the checkpoint after `step` steps lies."""
    return run / f"step-{step:07d}"


def latest(run: Path) -> int:
    """The newest whole checkpoint's step; 0 where there is none."""
    return max((int(p.name.removeprefix("step-")) for p in run.glob("step-*")), default=0)


def opened(run: Path, recipe: Spec) -> int:
    """The newest checkpoint's step in `run`, whose drafts that a kill left behind are removed.

    Raises InputError where the checkpoint belongs to another recipe, naming the keys that differ.
    """
    remove_drafts(run)
    done = latest(run)
    if done:
        _check_same(run, json.loads((folder_of(run, done) / "recipe.json").read_text()), recipe)
    return done


def state_of(model: PreTrainedModel, optimizer: Optimizer, kept: bool = True) -> State:
    """The state of a model and its optimiser, empty unless `kept`.

    Processes that each have a share of them call this together.
    """
    return State(model.config, _gathered(_own_tensors(model), kept), _gathered(_moments(model, optimizer), kept))


def save(run: Path, step: int, recipe: Spec, state: State, history: History) -> None:
    """Writes the checkpoint of `step` and drops all but the newest two.

    Raises InputError where it cannot be written, as on a full disk; the older checkpoints stay.
    """
    fix = f"make room, then the same command goes on from step {latest(run)}"
    with replacing(folder_of(run, step), fix) as draft:
        draft.mkdir()
        _write(draft, recipe, state, history)
    for old in sorted(run.glob("step-*"))[:-KEPT]:
        remove(old.rename(run / f".draft-{old.name}"))  # a kill in between leaves a draft, never half of a step


def restore(run: Path, step: int, model: PreTrainedModel, optimizer: Optimizer) -> History:
    """Puts model and optimiser back to where they were after `step` steps; returns the history so far."""
    folder = folder_of(run, step)
    fill(folder, model)
    moments = load_file(folder / "optimizer.safetensors")
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            optimizer.state[parameter] = {part: as_held(moments[f"{name}.{part}"], parameter) for part in MOMENTS}
    return history_of(folder)


@torch.no_grad()
def fill(folder: Path, model: PreTrainedModel) -> None:
    """Copies a checkpoint's weights into a model of the same shape."""
    weights = load_file(folder / "model.safetensors")
    for name, tensor in _own_tensors(model):
        tensor.copy_(as_held(weights[name], tensor))


def history_of(folder: Path) -> History:
    """What was watched during the run, a row per reading."""
    return json.loads((folder / "history.json").read_text())


def _write(draft: Path, recipe: Spec, state: State, history: History) -> None:
    """Every file of a checkpoint."""
    state.config.save_pretrained(draft)
    save_file(state.weights, draft / "model.safetensors", {"format": "pt"})
    save_file(state.moments, draft / "optimizer.safetensors")
    (draft / "recipe.json").write_text(json.dumps(recipe.to_dict(), indent=1))
    (draft / "history.json").write_text(json.dumps(history))


def _gathered(named: Iterator[tuple[str, torch.Tensor]], kept: bool) -> dict[str, torch.Tensor]:
    """Whole tensors by name, on the CPU; one after the other, so that no device holds more than one."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in named:
        complete = whole(tensor.detach())
        if kept:
            found[name] = complete.cpu()
    return found


def _own_tensors(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Weights by name, each once: of tied ones the first."""
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            yield name, tensor
        seen.add(id(tensor))


def _moments(model: PreTrainedModel, optimizer: Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    for name, parameter in model.named_parameters():
        for part, value in optimizer.state.get(parameter, {}).items():
            yield f"{name}.{part}", value


def _check_same(run: Path, plain: dict[str, Any], recipe: Spec) -> None:
    there, here = _flat(Spec.from_dict(plain).to_dict()), _flat(recipe.to_dict())
    differing = [f"{key} is {there.get(key)} there, {here.get(key)} here" for key in sorted({*there, *here})
                 if there.get(key) != here.get(key)]  # fmt: skip
    if differing:
        more = f" and {len(differing) - 4} more" if len(differing) > 4 else ""
        raise InputError(
            f"{run} holds a run of another recipe: {', '.join(differing[:4])}{more}; give another folder, "
            "or the same settings"
        )


def _flat(plain: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in plain.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat
