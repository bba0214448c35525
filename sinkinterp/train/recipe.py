"""What a training run is: a model, a task, and how one is fitted to the other."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from ..attention.masks import Mask
from ..data.backcopy import BigramBackcopy
from ..lm.config import LMSpec
from ..spec import Spec
from .objectives import NextToken, Objective
from .schedules import CooldownRate, Rate
from .weight_decay import Decay, MapsAndTokens

SEEN = 128  # positions from the first on whose visibility is checked against the objective


@runtime_checkable
class Task(Protocol):
    """Sequences without end: `vocab` symbols, `length` positions."""

    @property
    def vocab(self) -> int: ...

    @property
    def length(self) -> int: ...

    def sample(self, n: int, *stream: object) -> Int[Tensor, "sequence pos"]:
        """`n` sequences, the same for the same stream."""
        ...


def prepared(data: Any, cache: Path, on_progress: Callable[[int, int], None] = lambda done, of: None) -> Task:
    """The task that a spec of data describes, made ready once in `cache` where it needs that."""
    prepare = getattr(data, "prepare", None)
    return data if prepare is None else prepare(cache, on_progress)


@dataclass(frozen=True)
class Fit(Spec):
    """AdamW (0.9, 0.95), gradients clipped at norm `clip`: how any model is fitted to batches.

    `batch` counts sequences over all processes, `micro_batch` the most of one forward pass.
    `watch_every` and `save_every` count optimiser steps. `bf16` computes in bfloat16 by autocast; weights, moments and
    what is watched stay fp32. `threads` is for the CPU: tiny matrices run fastest on one. A run is a pure function of
    its recipe on one machine.
    """

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

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "micro_batch", "threads", "watch_every", "save_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1; got {getattr(self, name)}")
        if not (self.lr > 0 and self.clip > 0 and self.weight_decay >= 0 and self.warmup >= 0):
            raise ValueError("lr and clip are above 0, weight_decay and warmup at least 0")

    def rate(self, step: int) -> float:
        """Learning rate of a step, counted from 1: a linear warm-up, then the schedule."""
        return self.lr * min(1.0, step / max(1, self.warmup), self.schedule.share(step, self.steps, self.warmup))


def shown_ahead(mask: Mask, length: int) -> int:
    """The last position, of the first `SEEN`, that a mask shows to an earlier query; 0 where it shows none."""
    index = torch.arange(min(length, SEEN))
    shown = mask.allows(index[:, None], index[None, :]) & (index[None, :] > index[:, None])
    return int(index[shown.any(0)].max()) if shown.any() else 0


@dataclass(frozen=True)
class Recipe(Fit):
    """A language model of ours, fitted to a task from its random start."""

    model: LMSpec = LMSpec()
    data: Any = BigramBackcopy()  # a spec with vocab and length that is a Task, or is prepared to be one
    objective: Objective = NextToken()

    def __post_init__(self) -> None:
        super().__post_init__()
        vocab, length = (getattr(self.data, name, None) for name in ("vocab", "length"))
        if vocab is None or length is None:
            raise ValueError(f"{type(self.data).__name__} is no task: it has no vocab and no length")
        if self.model.vocab != vocab or self.model.n_ctx < length:
            raise ValueError(
                f"the model holds {self.model.vocab} symbols and {self.model.n_ctx} positions, the task "
                f"{vocab} and {length}; give both the same symbols and the model enough positions: "
                f"model.vocab={vocab} model.n_ctx={length}"
            )
        self._check_hidden(length)

    def _check_hidden(self, length: int) -> None:
        """Refuses a mask that shows a token to the queries that are to predict it."""
        last = shown_ahead(self.model.attention.mask, length)
        if last >= self.objective.first:
            raise ValueError(
                f"the mask shows the token at position {last} to earlier ones, which are to predict it; "
                f"use objective=PrefixLM with prefix={last + 1}"
            )
