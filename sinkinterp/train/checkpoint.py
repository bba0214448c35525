"""Checkpoints that are either whole or absent: written beside, flushed, then renamed into place."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.optim import Optimizer

from ..lm.model import SinkForCausalLM
from .recipe import Recipe

KEPT = 2  # newest checkpoints of a run that stay on disk


def folder_of(run: Path, step: int) -> Path:
    """Where the checkpoint after `step` steps lies."""
    return run / f"step-{step:07d}"


def latest(run: Path) -> int:
    """The newest whole checkpoint's step; 0 where there is none."""
    return max((int(p.name.removeprefix("step-")) for p in run.glob("step-*")), default=0)


def save(
    run: Path, step: int, recipe: Recipe, model: SinkForCausalLM, optimizer: Optimizer, history: list[dict[str, Any]]
) -> None:
    """Writes the checkpoint of `step` and drops all but the newest two."""
    draft = run / f"draft-{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    model.config.save_pretrained(draft)
    save_file(model.state_dict(), draft / "model.safetensors", {"format": "pt"})
    save_file(_optimizer_tensors(model, optimizer), draft / "optimizer.safetensors")
    (draft / "recipe.json").write_text(json.dumps(recipe.to_dict(), indent=1))
    (draft / "history.json").write_text(json.dumps(history))
    for file in draft.iterdir():
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
    draft.rename(folder_of(run, step))
    for old in sorted(run.glob("step-*"))[:-KEPT]:
        shutil.rmtree(old)


def restore(run: Path, step: int, model: SinkForCausalLM, optimizer: Optimizer) -> list[dict[str, Any]]:
    """Puts model and optimiser back to where they were after `step` steps; returns the history so far."""
    folder = folder_of(run, step)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    tensors = load_file(folder / "optimizer.safetensors")
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            optimizer.state[parameter] = {part: tensors[f"{name}.{part}"] for part in ("step", "exp_avg", "exp_avg_sq")}
    return history_of(folder)


def history_of(folder: Path) -> list[dict[str, Any]]:
    """What was watched during the run, a row per reading."""
    return json.loads((folder / "history.json").read_text())


def _optimizer_tensors(model: SinkForCausalLM, optimizer: Optimizer) -> dict[str, torch.Tensor]:
    return {
        f"{name}.{part}": value
        for name, parameter in model.named_parameters()
        for part, value in optimizer.state.get(parameter, {}).items()
    }
