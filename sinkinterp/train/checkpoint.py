"""Checkpoints of a run: written whole or not at all, read back bit for bit, and put on the Hub with a card."""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import CommitOperationAdd, HfApi, ModelCardData
from safetensors.torch import load_file, save_file
from torch.optim import Optimizer
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .. import files
from ..checks import InputError, refusal
from ..spec import Spec, flat
from .recipe import Fit

KEPT = 2  # how many of a run's newest checkpoints stay on disk
OPTIMIZER = "optimizer.safetensors"
MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # AdamW's state of one parameter
History = list[dict[str, Any]]


def folder_of(run: Path, step: int) -> Path:
    """The folder of the checkpoint after `step` steps."""
    return run / f"step-{step:07d}"


def steps_in(run: Path) -> list[int]:
    """The steps of the checkpoints in a run's folder, whole or not, in order."""
    names = (re.fullmatch(r"step-(\d{7}|[1-9]\d{7,})", path.name) for path in run.glob("step-*"))
    return sorted(int(name[1]) for name in names if name)


def latest(run: Path) -> int:
    """The step of the newest checkpoint, whole or not; 0 without a checkpoint."""
    return max(steps_in(run), default=0)


def identity(recipe: Spec, step: int, base: str = "") -> files.Of:
    """Returns what a checkpoint is of: its run, its step, and the hash of the model that the run began with."""
    of: files.Of = {"run": recipe.key(), "step": step}
    return {**of, "base": base} if base else of


def check_made(folder: Path) -> None:
    """Raises InputError for a folder that is there, in that of a run without any checkpoint."""
    if folder.exists() and not latest(folder.parent):
        raise InputError(f"{folder} is of no run in {folder.parent}")


def check_own(folders: Iterable[Path], recipe: Spec) -> None:
    """Raises InputError where one of these folders says that another run wrote it."""
    for folder in folders:
        with suppress(files.Damaged):  # whoever reads it says so
            if files.owner(folder).get("run", recipe.key()) != recipe.key():
                raise InputError(f"{folder} is of another run; give another folder")


def opened(run: Path, recipe: Fit, base: str = "") -> int:
    """The step of the newest whole checkpoint in `run`, or 0 if there is none.

    Drafts and old checkpoints that a killed process left are removed. A damaged checkpoint is named on standard
    error and renamed to damaged-step-..., and the next older one is taken. Only the process that holds the run's lock
    may call this. Raises InputError if the checkpoint belongs to another recipe, whose different settings are named, or
    to another base model.
    """
    files.remove_drafts(run)
    steps = steps_in(run)
    while steps:
        folder = folder_of(run, step := steps.pop())
        try:
            files.check_hashes(folder, files.sealed_hashes(folder, {}))
        except files.Damaged as damage:
            start = f"step {steps[-1]}" if steps else "the beginning"
            aside = folder.with_name(f"damaged-{folder.name}")
            damage.warn(f"the checkpoint is renamed to {aside.name}, and training goes on from {start}")
            files.remove(aside)
            folder.rename(aside)
        else:
            _check_same(run, json.loads((folder / files.RECIPE).read_text()), recipe)
            if files.owner(folder).get("base", base) != base:
                raise InputError(f"the model that {run} began with has changed")
            _remove_old(run)
            return step
    return 0


def _remove_old(run: Path) -> None:
    """Removes all checkpoints but the newest two."""
    for old in steps_in(run)[:-KEPT]:
        files.remove_whole(folder_of(run, old))


def save(
    run: Path,
    of: files.Of,
    recipe: Spec,
    model: PreTrainedModel,
    optimizer: Optimizer,
    history: History,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> None:
    """Writes the checkpoint that `of` names (see `identity`) with its seal, then removes all but the newest two.

    With a base, weights that are not trained are left out, since that has them. With a `tokenizer` the model reads
    text wherever its folder is copied to. Raises InputError if it cannot be written, as on a full disk. The older
    checkpoints stay.
    """
    fix = f"make room, then the same command goes on from step {latest(run)}"
    with files.replacing(folder_of(run, int(of["step"])), fix) as draft:
        draft.mkdir()
        model.config.save_pretrained(draft)
        weights = [(name, x) for name, x in _weights(model) if x.requires_grad or "base" not in of]
        save_file(_on_cpu(weights), draft / "model.safetensors", {"format": "pt"})
        save_file(_on_cpu(_moments(model, optimizer)), draft / OPTIMIZER)
        (draft / files.RECIPE).write_text(json.dumps(recipe.to_dict(), indent=1))
        (draft / "history.json").write_text(json.dumps(history))
        if tokenizer is not None:
            tokenizer.save_pretrained(draft)
        files.seal(draft, of)
    _remove_old(run)


def restore(run: Path, step: int, model: PreTrainedModel, optimizer: Optimizer) -> History:
    """Puts model and optimiser into their state after `step` steps. Returns the history up to there."""
    folder = folder_of(run, step)
    fill(folder, model)
    moments = load_file(folder / OPTIMIZER)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and f"{name}.{MOMENTS[0]}" in moments:  # else it never had a gradient
            parts = {part: moments[f"{name}.{part}"] for part in MOMENTS}
            optimizer.state[parameter] = {part: x.to(parameter.device, copy=True) for part, x in parts.items()}
    return history_of(folder)


@torch.no_grad()
def fill(folder: Path, model: PreTrainedModel) -> None:
    """Copies the weights of a checkpoint into a model of the same shape."""
    weights = dict(_weights(model))
    for name, tensor in load_file(folder / "model.safetensors").items():
        weights[name].copy_(tensor)


def history_of(folder: Path) -> History:
    """The evaluations of the run up to this checkpoint, a row each. Raises InputError where the file is damaged."""
    files.verify(folder, "history.json")
    return json.loads((folder / "history.json").read_text())


def _on_cpu(named: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu() for name, tensor in named}


def _weights(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Weights by name. Tied weights come once, under their first name."""
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
    theirs, ours = flat(Spec.from_dict(stored).to_dict()), flat(recipe.to_dict())
    keys = [key for key in sorted({*theirs, *ours}) if theirs.get(key) != ours.get(key)]
    differences = [f"{key} is {theirs.get(key, 'not set')} there, {ours.get(key, 'not set')} here" for key in keys]
    if differences:
        more = f" and {len(differences) - 4} more" if len(differences) > 4 else ""
        shown = ", ".join(differences[:4]) + more
        raise InputError(f"{run} holds a run of another recipe: {shown}; give another folder, or the same settings")


_OF_HUB = re.compile(r"[\w.-]+/[\w.-]+")  # a name there; a name of ours or a folder is not one


def card(repo: str, title: str, answer: str, recipe: Spec, base: str = "") -> str:
    """The text of a model card: a title, what is known of the model, how it is read, and its recipe."""
    is_named = _OF_HUB.fullmatch(base) and not Path(base).exists()
    data = ModelCardData(base_model=base if is_named else None, tags=["attention-sink"], library_name="sinkinterp")
    code = f'```python\nimport sinkinterp as si\n\nsi.measure("{repo}", "A sentence of some length.")\n```'
    made = f"## Recipe\n\n```json\n{json.dumps(recipe.to_dict(), indent=1)}\n```\n"
    return f"---\n{data.to_yaml()}\n---\n\n# {title}\n\n{answer}\n\n{code}\n\n{made}"


def push(folder: Path, repo: str, text: str, private: bool) -> str:
    """Uploads the files of a sealed folder with a card in one commit, and returns the address of the repository.

    The repository is made if it is not there. Raises InputError where a file is damaged, and where the Hub refuses.
    """
    files.verify(folder)
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    parts: dict[str, Path | bytes] = {**paths, "README.md": text.encode()}
    operations = [CommitOperationAdd(name, part) for name, part in parts.items()]
    fix = "log in with `hf auth login`, and give a name such as me/model"
    with refusal(f"{repo} cannot be written to the Hub", fix, (OSError, ValueError)):
        hub = HfApi()
        address = hub.create_repo(repo, private=private, exist_ok=True)
        hub.create_commit(repo, operations, commit_message=f"Written by sinkinterp: {folder.name}")
    return str(address)
