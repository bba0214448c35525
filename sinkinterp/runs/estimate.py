"""What an experiment would cost: how many runs, tokens, hours and gigabytes, before any of them is made."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..files import cache_folder
from ..lm.model import build
from ..train import checkpoint, loop
from ..train.job import Job, job_of, prepared
from ..train.loop import update
from ..train.recipe import Recipe
from .finetune import ChatRecipe, Trainable, job_on_chats, run_of, tokenizer_of

TIMED_STEPS = 5
GPU_SPEED = 150e12  # operations a second: half of an A100's, or a sixth of an H100's, largest speed in bfloat16
BYTES = 4  # of a number in a checkpoint
TENSORS = 3  # of the size of the model in a checkpoint: its weights and AdamW's two moments
GB = 10**9


@dataclass(frozen=True)
class Cost:
    """The runs of an experiment, those that are in the cache already, and what the others take.

    tokens: that they read. hours: one run after the other. gigabytes: of the checkpoints that they leave on disk.
    """

    runs: int
    cached: int
    tokens: int
    hours: float
    gigabytes: float


def cost_of(recipes: Sequence[Trainable], cache: Path | None = None, speed: float | None = None) -> Cost:
    """The cost of these runs.

    `speed` is that of the machine in operations a second; by default it is measured, over a few steps of the first run
    that is missing. Chats count at the length at which they are cut.
    """
    distinct = {recipe.key(): recipe for recipe in recipes}
    missing = [recipe for recipe in distinct.values() if checkpoint.latest(_folder(recipe, cache)) < recipe.steps]
    tokens = sum(map(_tokens, missing))
    if not missing:
        seconds = 0.0
    elif speed is None:
        seconds = tokens / tokens_per_second(missing[0], cache)
    else:
        seconds = sum(_tokens(recipe) * operations_per_token(recipe) for recipe in missing) / speed
    numbers = sum(parameters_of(recipe) for recipe in missing if isinstance(recipe, Recipe))
    size = numbers * BYTES * TENSORS * checkpoint.KEPT / GB
    return Cost(len(distinct), len(distinct) - len(missing), tokens, seconds / 3600, size)


def operations_per_token(recipe: Trainable) -> float:
    """Floating-point operations of a training step by token: 6 for each weight of a matrix, 12 T d for each layer.

    The second part is the scores and their product with the values, which masks do not make cheaper.
    """
    if not isinstance(recipe, Recipe):
        raise TypeError("the operations of fine-tuning depend on the model, which is not read here")
    model = recipe.model
    weights = parameters_of(recipe) - model.vocab * model.d_model  # the embedding is looked up
    return 6.0 * weights + 12.0 * model.n_layers * recipe.length * model.d_model


def parameters_of(recipe: Recipe) -> int:
    """How many parameters the model of a recipe has; no memory is taken for them."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build(recipe.model).parameters())


def tokens_per_second(recipe: Trainable, cache: Path | None = None) -> float:
    """How fast a recipe trains here, without evaluations; the first step, which is slower, does not count."""
    job = _job(recipe, cache)
    with loop.threads(recipe.threads):
        model = job.start().train()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for step in range(1, TIMED_STEPS + 2):
            if step == 2:
                start = time.perf_counter()
            update(job, step, model, optimizer)
    return TIMED_STEPS * recipe.batch * recipe.length / (time.perf_counter() - start)


def _tokens(recipe: Trainable) -> int:
    """How many tokens a run reads."""
    return recipe.steps * recipe.batch * recipe.length


def _job(recipe: Trainable, cache: Path | None) -> Job[Any]:
    if isinstance(recipe, ChatRecipe):
        return job_on_chats(recipe, tokenizer_of(recipe))
    return job_of(recipe, prepared(recipe.data, cache or cache_folder()), lambda model: {})


def _folder(recipe: Trainable, cache: Path | None) -> Path:
    """Where the run of a recipe lies."""
    return (
        run_of(recipe, cache) if isinstance(recipe, ChatRecipe) else (cache or cache_folder()) / "runs" / recipe.key()
    )
