"""What a training run is: a model, a task, and how one is fitted to the other."""

from dataclasses import dataclass

from ..data.backcopy import BigramBackcopy
from ..lm.model import LMSpec
from ..spec import Spec


@dataclass(frozen=True)
class Recipe(Spec):
    """AdamW (0.9, 0.95), gradients clipped; weight decay on linear maps and token embeddings only.

    The rate is constant between a linear warm-up and a linear cool-down to a tenth over the last `cooldown` of the
    steps, which takes the noise of the constant rate out of the final losses. `watch_every` and `save_every` count
    optimiser steps. A run is a pure function of its recipe on one machine.
    """

    model: LMSpec = LMSpec()
    data: BigramBackcopy = BigramBackcopy()
    seed: int = 0
    steps: int = 1500
    batch: int = 128
    lr: float = 2e-2
    weight_decay: float = 1.0
    warmup: int = 100
    cooldown: float = 0.2
    clip: float = 1.0
    watch_every: int = 125
    save_every: int = 250

    def __post_init__(self) -> None:
        if not 0 < self.cooldown < 1:
            raise ValueError(f"cooldown is a share of the steps, between 0 and 1; got {self.cooldown}")
        if self.model.vocab != self.data.vocab or self.model.n_ctx < self.data.length:
            raise ValueError(
                f"the model holds {self.model.vocab} symbols and {self.model.n_ctx} positions, the task "
                f"{self.data.vocab} and {self.data.length}; give both the same symbols and the model enough positions"
            )

    def rate(self, step: int) -> float:
        """Learning rate of a step, counted from 1."""
        left = (self.steps - step) / (self.cooldown * self.steps)
        return self.lr * min(1.0, step / self.warmup, 0.1 + 0.9 * left)
