"""What an experiment would cost: how many runs, tokens and hours, before any of them is made."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..files import cache_folder
from ..train import checkpoint, loop
from ..train.job import Job, job_of, prepared
from ..train.loop import update
from .finetune import ChatRecipe, Trainable, job_on_chats, run_of, tokenizer_of

TIMED_STEPS = 5


@dataclass(frozen=True)
class Cost:
    """The runs of an experiment, those that are in the cache already, and the tokens and hours of the others."""

    runs: int
    cached: int
    tokens: int
    hours: float


def cost_of(recipes: Sequence[Trainable], cache: Path | None = None) -> Cost:
    """The cost of these runs one after the other, at the tokens/s of a few steps of the first that is missing.

    Chats count at the length at which they are cut.
    """
    distinct = {recipe.key(): recipe for recipe in recipes}
    missing = [recipe for recipe in distinct.values() if checkpoint.latest(_folder(recipe, cache)) < recipe.steps]
    tokens = sum(recipe.steps * recipe.batch * recipe.length for recipe in missing)
    hours = tokens / tokens_per_second(missing[0], cache) / 3600 if missing else 0.0
    return Cost(len(distinct), len(distinct) - len(missing), tokens, hours)


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


def _job(recipe: Trainable, cache: Path | None) -> Job[Any]:
    if isinstance(recipe, ChatRecipe):
        return job_on_chats(recipe, tokenizer_of(recipe))
    return job_of(recipe, prepared(recipe.data, cache or cache_folder()), lambda model: {})


def _folder(recipe: Trainable, cache: Path | None) -> Path:
    """Where the run of a recipe lies."""
    return (
        run_of(recipe, cache) if isinstance(recipe, ChatRecipe) else (cache or cache_folder()) / "runs" / recipe.key()
    )
