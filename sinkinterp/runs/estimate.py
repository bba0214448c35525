"""What an experiment would cost: how many runs, tokens and hours, before any of them is made."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..files import cache_folder
from ..train import checkpoint, loop
from ..train.job import job_of
from ..train.recipe import Recipe
from ..train.task import prepared
from ..train.update import update

TIMED_STEPS = 5


@dataclass(frozen=True)
class Cost:
    """The runs of an experiment, those that are in the cache already, and the tokens and hours of the others."""

    runs: int
    cached: int
    tokens: int
    hours: float


def cost_of(recipes: Sequence[Recipe], cache: Path | None = None) -> Cost:
    """The cost of these runs one after the other, at the tokens/s of a few steps of the first that is missing."""
    distinct = {recipe.key(): recipe for recipe in recipes}
    folder = (cache or cache_folder()) / "runs"
    missing = [r for key, r in distinct.items() if checkpoint.latest(folder / key) < r.steps]
    tokens = sum(recipe.steps * recipe.batch * recipe.data.length for recipe in missing)
    hours = tokens / tokens_per_second(missing[0], cache) / 3600 if missing else 0.0
    return Cost(len(distinct), len(distinct) - len(missing), tokens, hours)


def tokens_per_second(recipe: Recipe, cache: Path | None = None) -> float:
    """How fast a recipe trains here, without evaluations; the first step, which is slower, does not count."""
    job = job_of(recipe, prepared(recipe.data, cache or cache_folder()), lambda model: {})
    with loop.threads(recipe.threads):
        model = job.start().train()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for step in range(1, TIMED_STEPS + 2):
            if step == 2:
                start = time.perf_counter()
            update(job, step, model, optimizer)
    return TIMED_STEPS * recipe.batch * recipe.data.length / (time.perf_counter() - start)
