"""The training loop, in reading order."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor, nn

from ..errors import InputError
from ..lm.model import SinkForCausalLM, build
from . import checkpoint
from .recipe import Recipe

Watch = Callable[[SinkForCausalLM], dict[str, float]]
OnStep = Callable[[int, dict[str, float]], None]


def train(recipe: Recipe, run: Path, watch: Watch, on_step: OnStep = lambda step, latest: None) -> Path:
    """The folder of the recipe's final checkpoint in `run`, trained from the newest checkpoint there if need be.

    `watch` reads the model every `watch_every` steps; its numbers go to the checkpoint's history. `on_step` is told
    every step and the newest reading. Raises InputError when the loss is no longer finite; the checkpoints stay.
    """
    run.mkdir(parents=True, exist_ok=True)
    with FileLock(run / "lock"), one_thread():
        done = checkpoint.latest(run)
        if done < recipe.steps:
            _continue(recipe, run, done, watch, on_step)
    return checkpoint.folder_of(run, recipe.steps)


def _continue(recipe: Recipe, run: Path, done: int, watch: Watch, on_step: OnStep) -> None:
    model = build(recipe.model, recipe.seed)
    optimizer = torch.optim.AdamW(_groups(model, recipe.weight_decay), betas=(0.9, 0.95), fused=True)
    history = checkpoint.restore(run, done, model, optimizer) if done else [_reading(0, model, watch)]
    for step in range(done + 1, recipe.steps + 1):
        loss = _update(recipe, step, model, optimizer)
        if not math.isfinite(loss):
            raise InputError(
                f"the loss is {loss} at step {step}; lower lr (now {recipe.lr}) or clip (now {recipe.clip})"
            )
        if step % recipe.watch_every == 0 or step == recipe.steps:
            history.append(_reading(step, model, watch) | {"train_loss": loss})
        if step % recipe.save_every == 0 or step == recipe.steps:
            checkpoint.save(run, step, recipe, model, optimizer, history)
        on_step(step, history[-1])


def _groups(model: SinkForCausalLM, weight_decay: float) -> list[dict[str, Any]]:
    """Every trained parameter once: decayed in linear maps and the token embedding, else free.

    A position table that decays leaves p1 too small to make a sink of whichever token comes first.
    """
    owners = [m for m in model.modules() if isinstance(m, nn.Linear)] + [model.model.embed_tokens]
    decayed = {id(p) for owner in owners for p in owner.parameters()}
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if id(p) in decayed], "weight_decay": weight_decay},
        {"params": [p for p in trained if id(p) not in decayed], "weight_decay": 0.0},
    ]


def _update(recipe: Recipe, step: int, model: SinkForCausalLM, optimizer: torch.optim.Optimizer) -> float:
    tokens: Tensor = recipe.data.sample(recipe.batch, recipe.seed, step)
    for group in optimizer.param_groups:
        group["lr"] = recipe.rate(step)
    loss = model(tokens, labels=tokens, use_cache=False).loss
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
    optimizer.step()
    return loss.item()


def _reading(step: int, model: SinkForCausalLM, watch: Watch) -> dict[str, Any]:
    model.eval()
    reading = {"step": step} | watch(model)
    model.train()
    return reading


@contextmanager
def one_thread() -> Iterator[None]:
    """Tiny matrices run faster on one thread, and sums over a fixed number of threads are bitwise repeatable."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
