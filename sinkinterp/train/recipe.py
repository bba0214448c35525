"""Recipes: the settings that determine a training run."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..attention.masks import Mask
from ..checks import check_memory, whole_number
from ..data import packing  # noqa: F401  registers its kinds of data, which recipe files name
from ..data.backcopy import BigramBackcopy
from ..errors import InputError
from ..lm.config import LMSpec
from ..spec import Spec, added_later
from .recipe_parts import CooldownRate, Decay, MapsAndTokens, NextToken, Objective, Rate

CHECKED = 128  # positions, from the first on, that are checked for tokens shown to the queries that predict them
MOST_THREADS = 1024  # of one process
_COUNTS = ("batch", "micro_batch", "threads", "watch_every", "save_every")


@dataclass(frozen=True)
class Fit(Spec):
    """How AdamW (betas 0.9 and 0.95) fits any model to batches.

    batch: sequences per step, over all processes.
    micro_batch: the most sequences in one forward pass.
    clip: the largest gradient norm.
    bf16: whether autocast computes in bfloat16. Weights, moments and evaluations stay in fp32.
    threads: how many threads of the CPU compute. Tiny matrices are fastest on one.
    watch_every, save_every: optimiser steps between evaluations, and between checkpoints.
    recompute: whether the backward pass computes every block again (gradient checkpointing): less memory, more time.

    On one machine, a run is a pure function of its recipe.
    """

    least_steps: ClassVar[int] = 1
    seed: int = 0
    steps: int = 1500
    batch: int = 128
    micro_batch: int = 1024
    lr: float = 2e-2
    schedule: Rate = CooldownRate()
    warmup: int = 100
    weight_decay: float = 1.0
    decay: Decay = MapsAndTokens()
    clip: float = 1.0
    bf16: bool = False
    threads: int = 1
    watch_every: int = 125
    save_every: int = 250
    recompute: bool = added_later(False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise InputError(f"{name} is at least 1; got {getattr(self, name)}")
        if self.steps < self.least_steps:
            raise InputError(f"steps is at least {self.least_steps}; got {self.steps}")
        if not (self.lr > 0 and self.clip > 0 and self.weight_decay >= 0 and self.warmup >= 0):
            raise InputError("lr and clip are above 0, weight_decay and warmup at least 0")
        whole_number(self.seed, "seed", 0)
        whole_number(self.threads, "threads", 1, MOST_THREADS)

    def check_batch(self, length: int) -> None:
        """Raises InputError where the sequences of one step, of so many tokens, exceed the machine's memory."""
        check_memory(3 * 8 * self.batch * length, f"{self.batch:,} sequences of {length:,} tokens", "lower batch")

    def rate(self, step: int) -> float:
        """Learning rate of a step, counted from 1: a linear warm-up, then the schedule."""
        return self.lr * min(1.0, step / max(1, self.warmup), self.schedule.factor(step, self.steps, self.warmup))


@dataclass(frozen=True)
class Recipe(Fit):
    """A language model of ours, fitted to data from a random start.

    `data` is a spec with `vocab` and `length`. It is a `Task`, or `task.prepared` makes a `Task` of it.
    """

    model: LMSpec = LMSpec()
    data: Any = BigramBackcopy()
    objective: Objective = NextToken()

    def __post_init__(self) -> None:
        super().__post_init__()
        vocab, length = (getattr(self.data, name, None) for name in ("vocab", "length"))
        if vocab is None or length is None:
            raise InputError(f"{type(self.data).__name__} is not a task: it has no vocab and no length")
        if self.model.vocab != vocab or self.model.n_ctx < length:
            raise InputError(
                f"the model holds {self.model.vocab} symbols and {self.model.n_ctx} positions, the task "
                f"{vocab} and {length}; give both the same symbols and the model enough positions: "
                f"model.vocab={vocab} model.n_ctx={length}"
            )
        self._check_hidden(length)

    @property
    def length(self) -> int:
        """Tokens of a sequence."""
        return self.data.length

    def _check_hidden(self, length: int) -> None:
        """Raises InputError if the mask shows a token to the queries that must predict it."""
        last = shown_ahead(self.model.attention.mask, length)
        if last >= self.objective.first:
            raise InputError(
                f"the mask shows the token at position {last} to earlier ones, which are to predict it; "
                f"use objective=PrefixLM with prefix={last + 1}"
            )
        if self.objective.first >= length:
            raise InputError(f"no token comes after the first {self.objective.first} of {length}; raise data.length")


def shown_ahead(mask: Mask, length: int) -> int:
    """The last position, of the first `CHECKED`, that a mask shows to an earlier query, or 0 if it shows none."""
    index = torch.arange(min(length, CHECKED))
    shown = mask.allows(index[:, None], index[None, :]) & (index[None, :] > index[:, None])
    return int(index[shown.any(0)].max()) if shown.any() else 0


@dataclass(frozen=True)
class Continued(Recipe):
    """A training that goes on from the model that another recipe trained, after a change of that model.

    first: the other recipe. change: the name of the change.
    """

    first: Recipe = Recipe()
    change: str = ""
