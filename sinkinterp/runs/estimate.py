"""The cost of an experiment before it is run: how many runs, tokens, hours and gigabytes.

Every architecture is asked: steps of a few sequences are run on the device that would train it. Without a GPU, recipes
for one are counted by their operations.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import torch

from ..data.draws import generator
from ..data.tokens import Tokens
from ..lm.model import parameter_count
from ..train import checkpoint, loop
from ..train.distributed import World
from ..train.loop import Job, job_of, update
from ..train.recipe import Recipe, parameter_groups
from .trained import OwnTraining, Trainable, run_of

PROBED_TOKENS = 4096  # of a step that is timed, at most, but two sequences
GPU_SPEED = 150e12  # operations a second: half of an A100's, or a sixth of an H100's, largest speed in bfloat16
GPU_STEP = 0.01  # seconds that a step takes at least: an H100 made 66 to 110 steps a second of small models together
BYTES = 12  # of a weight and of AdamW's two moments of it, in a checkpoint


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


def cost_of(recipes: Sequence[Trainable], cache: Path | None = None) -> Cost:
    """The cost of these runs, each counted once. Chats count at the length at which they are cut."""
    distinct = {recipe.key(): recipe for recipe in recipes}
    missing = [recipe for recipe in distinct.values() if checkpoint.latest(run_of(recipe, cache)) < recipe.steps]
    numbers = sum(parameter_count(recipe.model) for recipe in missing if isinstance(recipe, Recipe))
    tokens = sum(recipe.steps * recipe.batch * recipe.length for recipe in missing)
    hours = sum(recipe.steps * seconds_of(recipe) for recipe in missing) / 3600
    gigabytes = numbers * BYTES * checkpoint.KEPT / 1e9
    return Cost(len(distinct), len(distinct) - len(missing), tokens, hours, gigabytes)


def has_its_device(recipe: Trainable) -> bool:
    """Tells if the device that would train a recipe is here: a GPU for bfloat16, else the CPU."""
    return torch.cuda.is_available() or not recipe.bf16


def seconds_of(recipe: Trainable) -> float:
    """How long a step of the recipe takes on its device. The first of an architecture takes seconds to find out.

    On a GPU that is not here it is counted at `GPU_SPEED`, as for softmax, and takes `GPU_STEP` at least.
    """
    if not isinstance(recipe, Recipe):
        return _timed(recipe)
    if has_its_device(recipe):
        names = ("model", "objective", "batch", "bf16", "threads", "recompute")
        kept: dict[str, Any] = {name: getattr(recipe, name) for name in names}
        return _timed(Recipe(data=Noise(recipe.model.vocab, recipe.length), **kept))
    model, tokens = recipe.model, recipe.batch * recipe.length
    weights = parameter_count(model) - model.vocab * model.d_model  # the embedding is looked up
    operations = 6.0 * weights + 12.0 * model.n_layers * recipe.length * model.d_model
    return max(GPU_STEP, tokens * operations / GPU_SPEED)


@cache
def _timed(recipe: Trainable) -> float:
    """How long a step of the recipe takes, by steps of the first sequences of its first batch; one warms up."""
    few = min(recipe.batch, max(2, PROBED_TOKENS // recipe.length))
    job = _job(recipe)
    batch = {name: tensor[:few] for name, tensor in job.batch(1).items()}
    job = replace(job, fit=replace(job.fit, batch=few, micro_batch=few), batch=lambda step: batch)
    seconds = []
    with loop.threads(recipe.threads), torch.random.fork_rng():
        model = loop.started(job).train()
        optimizer = torch.optim.AdamW(parameter_groups(model, recipe.decay, recipe.weight_decay), fused=True)
        for _ in range(4):
            start = time.perf_counter()
            update(job, 1, model, optimizer)  # it reads the loss, so a GPU has finished
            seconds.append(time.perf_counter() - start)
    return median(seconds[1:]) * recipe.batch / few


@dataclass(frozen=True)
class Noise:
    """The task of random tokens, in place of a text, which may not be here."""

    vocab: int
    length: int
    title: ClassVar[str] = "noise"

    def sample(self, n: int, *stream: object) -> Tokens:
        return torch.randint(self.vocab, (n, self.length), generator=generator("estimate"))


def _job(recipe: Trainable) -> Job[Any]:
    """The job of a recipe on its device."""
    world = World(torch.device("cuda" if recipe.bf16 and torch.cuda.is_available() else "cpu"))
    if isinstance(recipe, OwnTraining):
        return replace(recipe.job(), world=world)
    return job_of(recipe, recipe.data, lambda model: {}, world)
