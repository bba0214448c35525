"""The training loop."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer
from transformers import PreTrainedModel

from ..errors import InputError
from ..files import sole_writer
from . import checkpoint, distributed, interrupt
from .checkpoint import History
from .job import Job
from .recipe import Fit
from .update import update
from .weight_decay import parameter_groups

OnStep = Callable[[int, dict[str, Any]], None]


def train(job: Job[Fit], run: Path, on_step: OnStep = lambda step, metrics: None) -> Path:
    """The folder of the job's final checkpoint in `run`, trained from the newest whole checkpoint there.

    Every evaluation becomes a row of the checkpoint's history. `on_step` is called after every step with its number,
    and with the newest evaluation plus the step's loss, gradient norm, learning rate and number of tokens.

    Raises InputError if the loss is no longer finite, if the disk is full, or if `run` holds the run of another recipe;
    the checkpoints stay. After an interrupt, saves a checkpoint and raises KeyboardInterrupt.
    """
    fit, world = job.fit, job.world
    if fit.batch % world.size:
        raise InputError(f"{world.size} processes cannot share {fit.batch} sequences; set batch to a multiple")
    with ExitStack() as stack:
        stack.enter_context(threads(fit.threads))
        if world.is_first:
            stack.enter_context(sole_writer(run, "give another folder"))
        done = world.broadcast(checkpoint.opened(run, fit) if world.is_first else 0)
        if done < fit.steps:
            _continue(job, run, done, on_step)
    return checkpoint.folder_of(run, fit.steps)


def _continue(job: Job[Fit], run: Path, done: int, on_step: OnStep) -> None:
    """Trains from step `done` to the last step."""
    fit, world = job.fit, job.world
    model, engine, optimizer, history = _start(job, run, done)
    with interrupt.deferred() as interrupted:
        for step in range(done + 1, fit.steps + 1):
            step_metrics = update(job, step, engine, optimizer)
            stop, last = world.summed(float(interrupted()))[0] > 0, step == fit.steps
            if step % fit.watch_every == 0 or last:
                history.append(_evaluation(job, step, model) | step_metrics)
            if step % fit.save_every == 0 or last or stop:
                state = checkpoint.state_of(model, optimizer, kept=world.is_first)
                if world.is_first:
                    checkpoint.save(run, step, fit, state, history, job.tokenizer)
            on_step(step, history[-1] | step_metrics)
            if stop and not last:
                raise KeyboardInterrupt


def _start(job: Job[Fit], run: Path, done: int) -> tuple[PreTrainedModel, nn.Module, Optimizer, History]:
    """The model, what computes its gradients, the optimiser and the history after `done` steps."""
    fit, world = job.fit, job.world
    model = job.start().to(world.device)
    history = [] if done else [_evaluation(job, 0, model)]
    engine = world.wrapped(model.train())
    optimizer = AdamW(parameter_groups(model, fit.decay, fit.weight_decay), betas=(0.9, 0.95), fused=True)
    if done:
        history = checkpoint.restore(run, done, model, optimizer)
    return model, engine, optimizer, history


def _evaluation(job: Job[Fit], step: int, model: PreTrainedModel) -> dict[str, Any]:
    """A row of the history. Only the first process evaluates; the others lend it their shards of the weights."""
    with distributed.gathered(model):
        model.eval()
        metrics = job.evaluate(model) if job.world.is_first else {}
        model.train()
    return {"step": step} | metrics


@contextmanager
def threads(count: int) -> Iterator[None]:
    """PyTorch computes on `count` threads: sums over a fixed number of threads are bitwise repeatable."""
    outer_count = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(outer_count)
