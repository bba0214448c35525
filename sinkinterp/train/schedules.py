"""Learning rates over a run, as values: each says what share of the peak rate a step gets."""

import math
from dataclasses import dataclass

from ..spec import Spec


@dataclass(frozen=True)
class Rate(Spec):
    """What follows the linear warm-up."""

    def share(self, step: int, steps: int, warmup: int) -> float:
        """Share of the peak rate at `step`, counted from 1, of a run of `steps` whose first `warmup` warm up."""
        raise NotImplementedError


@dataclass(frozen=True)
class ConstantRate(Rate):
    """The peak rate to the end, which is what the released configurations of Gu et al. (2025) run."""

    def share(self, step: int, steps: int, warmup: int) -> float:
        return 1.0


@dataclass(frozen=True)
class CosineRate(Rate):
    """Half a cosine from the peak at the end of the warm-up down to `floor` at the last step."""

    floor: float = 0.1

    def __post_init__(self) -> None:
        _check_floor(self.floor)

    def share(self, step: int, steps: int, warmup: int) -> float:
        done = max(0, step - warmup) / max(1, steps - warmup)
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * done)) / 2


@dataclass(frozen=True)
class CooldownRate(Rate):
    """The peak rate, then a line down to `floor` over the last `last` of the steps.

    The line takes the noise of the constant rate out of the final losses.
    """

    last: float = 0.2
    floor: float = 0.1

    def __post_init__(self) -> None:
        _check_floor(self.floor)
        if not 0 < self.last < 1:
            raise ValueError(f"a cool-down takes a share of the steps, between 0 and 1; got {self.last}")

    def share(self, step: int, steps: int, warmup: int) -> float:
        left = (steps - step) / (self.last * steps)
        return min(1.0, self.floor + (1 - self.floor) * left)


def _check_floor(floor: float) -> None:
    if not 0 <= floor <= 1:
        raise ValueError(f"the floor of a rate is a share of its peak, 0 to 1; got {floor}")
