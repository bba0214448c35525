"""The cost of an experiment before it is run: how many runs, tokens, hours and gigabytes.

Every architecture is asked: a step of a few sequences is run on the device that would train it, and scaled up. Without
a GPU, recipes for one are counted by their operations.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any
from weakref import finalize

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..backends.files.model_files import tokenizer_of
from ..checks import Frozen, InputError, memory_bytes
from ..data.draws import generator
from ..lm.model import LMSpec, build
from ..train import checkpoint, loop
from ..train.distributed import World
from ..train.loop import Job, update
from ..train.recipe import Recipe, parameter_groups
from .trained import ChatRecipe, Trainable, job_on_chats, run_of

PROBED_TOKENS = 4096  # of a step that is timed, at most, but two sequences
TIMED_STEPS = 3
GPU_SPEED = 150e12  # operations a second: half of an A100's, or a sixth of an H100's, largest speed in bfloat16
GPU_STEP = 0.01  # seconds that a step takes at least: an H100 made 66 to 110 steps a second of small models together
GPU_BYTES = 80 * 10**9  # of the memory of such a GPU
BYTES = 4  # of a weight
TENSORS = 3  # of the size of the model in a checkpoint: its weights and AdamW's two moments
GB = 10**9


class Step(Frozen):
    """A training step: how long it takes, and the most bytes of memory that it holds, weights and moments included."""

    seconds: float
    memory: int


class Cost(Frozen):
    """The runs of an experiment, those that are in the cache already, and what the others take.

    tokens: that they read. hours: one run after the other. gigabytes: of the checkpoints that they leave on disk.
    memory: the gigabytes that the largest of them needs while it trains.
    """

    runs: int
    cached: int
    tokens: int
    hours: float
    gigabytes: float
    memory: float


def cost_of(recipes: Sequence[Trainable], cache: Path | None = None) -> Cost:
    """The cost of these runs, each counted once. Chats count at the length at which they are cut.

    Raises InputError, with the micro-batch that fits, for a run that exceeds the memory of its device.
    """
    distinct = {recipe.key(): recipe for recipe in recipes}
    missing = [recipe for recipe in distinct.values() if checkpoint.latest(run_of(recipe, cache)) < recipe.steps]
    steps = [_checked(recipe) for recipe in missing]
    numbers = sum(parameters_of(recipe.model) for recipe in missing if isinstance(recipe, Recipe))
    return Cost(
        len(distinct),
        len(distinct) - len(missing),
        sum(recipe.steps * recipe.batch * recipe.length for recipe in missing),
        sum(recipe.steps * step.seconds for recipe, step in zip(missing, steps, strict=True)) / 3600,
        numbers * BYTES * TENSORS * checkpoint.KEPT / GB,
        max((step.memory for step in steps), default=0) / GB,
    )


def _checked(recipe: Trainable) -> Step:
    """The step of a recipe. Raises InputError where it does not fit into the memory of its device."""
    step, most = step_of(recipe), _memory_for(recipe)
    if step.memory <= most:
        return step
    fitting = [n for n in (2**i for i in range(20)) if n < recipe.micro_batch]
    fitting = [n for n in fitting if step_of(replace(recipe, micro_batch=n)).memory <= most]
    fix = f"micro_batch={fitting[-1]} fits" if fitting else "even one sequence is too many: choose a smaller model"
    what = f"a step of {recipe.micro_batch} sequences at a time takes about {step.memory / GB:,.1f} GB"
    raise InputError(f"{what}, and its device has {most / GB:,.0f} GB; {fix}")


def has_its_device(recipe: Trainable) -> bool:
    """Tells if the device that would train a recipe is here: a GPU for bfloat16, else the CPU."""
    return torch.cuda.is_available() or not recipe.bf16


def _memory_for(recipe: Trainable) -> int:
    if not recipe.bf16:
        return memory_bytes()
    return torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else GPU_BYTES


def step_of(recipe: Trainable) -> Step:
    """What a step of the recipe takes on its device. The first of an architecture takes seconds."""
    if not isinstance(recipe, Recipe):
        return _scaled(*_probed(recipe), recipe)
    if not has_its_device(recipe):
        return _absent_step(recipe)
    kept = {name: getattr(recipe, name) for name in ("model", "objective", "batch", "bf16", "threads", "recompute")}
    return _scaled(*_probed(Recipe(data=Noise(recipe.model.vocab, recipe.length), **kept)), recipe)


def _scaled(few: int, one: Step, several: Step, recipe: Trainable) -> Step:
    """The step of a recipe, on the line through a step of one sequence and a step of a few."""

    def at(n: int, first: float, last: float) -> float:
        return last + (n - few) * max(last - first, 0) / (few - 1) if few > 1 else last

    held = at(min(recipe.batch, recipe.micro_batch), one.memory, several.memory)
    return Step(at(recipe.batch, one.seconds, several.seconds), int(held))


@cache
def _probed(recipe: Trainable) -> tuple[int, Step, Step]:
    """How many sequences a few are, and the steps of one sequence and of a few."""
    few = min(recipe.batch, max(2, PROBED_TOKENS // recipe.length))
    job = _job(recipe)
    with loop.threads(recipe.threads):
        model = loop.started(job).train()
        groups = parameter_groups(model, recipe.decay, recipe.weight_decay)
        optimizer = torch.optim.AdamW(groups, fused=True)
        one, several = (_run(_cut(job, n), model, optimizer) for n in (1, few))
    return few, one, several


def _run(job: Job[Any], model: torch.nn.Module, optimizer: torch.optim.Optimizer, repeats: int = TIMED_STEPS) -> Step:
    """A step that is run: once to count its memory, which also warms up, then against the clock."""
    with torch.random.fork_rng(), Held() as held:
        update(job, 1, model, optimizer)
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        update(job, 1, model, optimizer)  # it reads the loss, so a GPU has finished
        seconds.append(time.perf_counter() - start)
    numbers = sum(parameter.numel() for parameter in model.parameters())
    return Step(median(seconds or [0.0]), TENSORS * BYTES * numbers + held.peak)


def _cut(job: Job[Any], n: int) -> Job[Any]:
    """The job with the first `n` sequences of its first batch in every step."""
    batch = {name: tensor[:n] for name, tensor in job.batch(1).items()}
    return replace(job, fit=replace(job.fit, batch=n, micro_batch=n), batch=lambda step: batch)


class Held(TorchDispatchMode):
    """Counts the bytes of the tensors that operators make in this context: `now`, and at most, `peak`."""

    now = peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = {storage._cdata for storage in _storages((args, kwargs))}
        for storage in {s._cdata: s for s in _storages(made)}.values():
            if storage._cdata not in given:  # neither a view nor in place
                self._add(storage.nbytes())
                finalize(storage, self._add, -storage.nbytes())
        return made

    def _add(self, n_bytes: int) -> None:
        self.now += n_bytes
        self.peak = max(self.peak, self.now)


def _storages(tensors: Any) -> Iterable[torch.UntypedStorage]:
    return (leaf.untyped_storage() for leaf in tree_leaves(tensors) if isinstance(leaf, Tensor))


def _absent_step(recipe: Recipe) -> Step:
    """The step on a GPU that is not here, at `GPU_SPEED` for softmax, and no faster than `GPU_STEP`.

    Its memory is that of the weights, gradients and moments alone.
    """
    model, tokens, numbers = recipe.model, recipe.batch * recipe.length, parameters_of(recipe.model)
    weights = numbers - model.vocab * model.d_model  # the embedding is looked up
    operations = 6.0 * weights + 12.0 * model.n_layers * recipe.length * model.d_model
    return Step(max(GPU_STEP, tokens * operations / GPU_SPEED), (TENSORS + 1) * BYTES * numbers)


@cache
def parameters_of(model: LMSpec) -> int:
    """How many parameters a model has; no memory is taken for them."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build(model).parameters())


class Noise(Frozen):
    """Random tokens in place of a text, which may not be here."""

    vocab: int
    length: int


def _job(recipe: Trainable) -> Job[Any]:
    """The job of a recipe on its device, on noise where it is not on chats."""
    world = World(torch.device("cuda" if recipe.bf16 and torch.cuda.is_available() else "cpu"))
    if isinstance(recipe, ChatRecipe):
        return replace(job_on_chats(recipe, tokenizer_of(recipe.model)), world=world)
    shape = (recipe.batch, recipe.length)
    tokens = torch.randint(recipe.model.vocab, shape, generator=generator("estimate"))
    batch = {"input_ids": tokens, "labels": recipe.objective.labels(tokens)}
    return Job(recipe, lambda: build(recipe.model), lambda step: batch, lambda model: {}, world)
