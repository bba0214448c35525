"""The training loop, in reading order."""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import nn
from torch.optim import AdamW
from transformers import PreTrainedModel

from ..errors import InputError
from ..lm.model import build
from . import checkpoint, distributed, interrupt
from .distributed import Batch, World
from .objectives import IGNORED
from .recipe import Fit, Recipe, Task
from .weight_decay import groups

Watch = Callable[[Any], dict[str, float]]
OnStep = Callable[[int, dict[str, Any]], None]


@dataclass(frozen=True)
class Job:
    """A fit and what it is a fit of: the model's start, the batch of each step, what is watched, and where."""

    fit: Fit
    start: Callable[[], PreTrainedModel]
    batch: Callable[[int], Batch]
    watch: Watch
    world: World = field(default_factory=World)


def train(
    recipe: Recipe,
    run: Path,
    watch: Watch,
    on_step: OnStep = lambda step, latest: None,
    task: Task | None = None,
    world: World = World(),
) -> Path:
    """The folder of the recipe's final checkpoint in `run`, trained from the newest checkpoint there if need be.

    `task` is the recipe's data, prepared (default: the data need no preparation). `watch` reads the model every
    `watch_every` steps; its numbers go to the checkpoint's history. `on_step` is told every step, and the newest
    reading with the step's loss, gradient norm and rate. Raises InputError when the loss is no longer finite, the disk
    is full, or `run` holds another recipe's run; the checkpoints stay. An interrupt saves a checkpoint first.
    """
    source: Task = recipe.data if task is None else task

    def batch(step: int) -> Batch:
        tokens = source.sample(recipe.batch, recipe.seed, step)
        return {"input_ids": tokens, "labels": recipe.objective.labels(tokens)}

    return run_job(Job(recipe, lambda: build(recipe.model, recipe.seed), batch, watch, world), run, on_step)


def run_job(job: Job, run: Path, on_step: OnStep = lambda step, latest: None) -> Path:
    """The folder of the job's final checkpoint in `run`; see `train`."""
    fit, here = job.fit, job.world
    if fit.batch % here.size:
        raise InputError(f"{here.size} processes cannot share {fit.batch} sequences; set batch to a multiple")
    with ExitStack() as stack:
        stack.enter_context(threads(fit.threads))
        if here.is_first:
            stack.enter_context(_locked(run))
        done = here.agreed(checkpoint.opened(run, fit) if here.is_first else 0)
        if done < fit.steps:
            _continue(job, run, done, on_step)
    return checkpoint.folder_of(run, fit.steps)


def _continue(job: Job, run: Path, done: int, on_step: OnStep) -> None:
    fit, here = job.fit, job.world
    model = job.start().to(here.device)
    history = [] if done else [_reading(job, 0, model)]
    engine = here.wrapped(model.train())
    optimizer = AdamW(groups(model, fit.decay, fit.weight_decay), betas=(0.9, 0.95), fused=True)
    if done:
        history = checkpoint.restore(run, done, model, optimizer)
    with interrupt.deferred() as interrupted:
        for step in range(done + 1, fit.steps + 1):
            news = _update(job, step, engine, optimizer)
            stop, last = here.summed(float(interrupted()))[0] > 0, step == fit.steps
            if step % fit.watch_every == 0 or last:
                history.append(_reading(job, step, model) | news)
            if step % fit.save_every == 0 or last or stop:
                state = checkpoint.state_of(model, optimizer, kept=here.is_first)
                if here.is_first:
                    checkpoint.save(run, step, fit, state, history)
            on_step(step, history[-1] | news)
            if stop and not last:
                raise KeyboardInterrupt


def _update(job: Job, step: int, model: nn.Module, optimizer: AdamW) -> dict[str, float]:
    """One step down the gradient; its loss, gradient norm (before clipping), rate, and tokens, padding left out."""
    fit, rate = job.fit, job.fit.rate(step)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad()
    batch = job.batch(step)
    loss = _accumulate(job, batch, model)
    norm = distributed.whole(torch.nn.utils.clip_grad_norm_(model.parameters(), fit.clip))
    mean_loss, norm_sum = job.world.summed(loss, norm)
    mean_loss, mean_norm = mean_loss / job.world.size, norm_sum / job.world.size
    _check_finite(step, mean_loss, mean_norm, fit)
    optimizer.step()
    return {"train_loss": mean_loss, "grad_norm": mean_norm, "lr": rate, "tokens": _tokens(batch)}


def _accumulate(job: Job, batch: Batch, model: nn.Module) -> torch.Tensor:
    """Leaves the gradient of the batch's mean loss on the model, piece by piece; returns this process's part of it."""
    fit, share = job.fit, job.world.share(batch)
    starts = range(0, len(share["labels"]), fit.micro_batch)
    pieces = [{name: part[i : i + fit.micro_batch] for name, part in share.items()} for i in starts]
    whole = len(pieces) == job.world.size == 1
    targets = _targets(batch) / job.world.size
    total = torch.zeros((), device=job.world.device)
    for piece in pieces:
        with distributed.silent(model, last=piece is pieces[-1]):
            with torch.autocast(job.world.device.type, torch.bfloat16, enabled=fit.bf16):
                loss = model(**piece, use_cache=False).loss
            loss = loss if whole else loss * (_targets(piece) / targets)
            loss.backward()
            total += loss.detach()
    return total


def _targets(batch: Batch) -> int:
    """How many tokens of a batch are predicted."""
    return int((batch["labels"][:, 1:] != IGNORED).sum())


def _tokens(batch: Batch) -> int:
    return int(batch["attention_mask"].sum()) if "attention_mask" in batch else batch["input_ids"].numel()


def _check_finite(step: int, loss: float, norm: float, fit: Fit) -> None:
    """Stops a run before a step that would spoil its weights."""
    if not (math.isfinite(loss) and math.isfinite(norm)):
        what = f"gradient norm is {norm}" if math.isfinite(loss) else f"loss is {loss}"
        raise InputError(
            f"the {what} at step {step}; lower lr (now {fit.lr}) or clip (now {fit.clip}); the last checkpoint is kept"
        )


def _reading(job: Job, step: int, model: PreTrainedModel) -> dict[str, Any]:
    """What the first process watches in the model; the others only lend it their shares."""
    with distributed.gathered(model):
        model.eval()
        seen = job.watch(model) if job.world.is_first else {}
        model.train()
    return {"step": step} | seen


@contextmanager
def _locked(run: Path) -> Iterator[None]:
    """Holds the run's folder against other processes."""
    try:
        run.mkdir(parents=True, exist_ok=True)
        lock = FileLock(run / "lock")
        lock.acquire()
    except OSError as error:
        raise InputError(f"cannot write to {run}: {error.strerror}; give another folder") from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def threads(count: int) -> Iterator[None]:
    """PyTorch on so many threads: sums over a fixed number of them are bitwise repeatable."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
