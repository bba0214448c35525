"""Learning-rate schedules as values: each gives the factor by which a step's rate differs from the peak rate."""

import math
from dataclasses import dataclass

from ..errors import InputError
from ..spec import Spec


@dataclass(frozen=True)
class Rate(Spec):
    """The learning rate after the linear warm-up."""

    def factor(self, step: int, steps: int, warmup: int) -> float:
        """The rate at `step`, counted from 1, over the peak rate, in a run of `steps` of which `warmup` warm up."""
        raise NotImplementedError


@dataclass(frozen=True)
class ConstantRate(Rate):
    """The peak rate until the end, as in the released configurations of Gu et al. (2025)."""

    def factor(self, step: int, steps: int, warmup: int) -> float:
        return 1.0


@dataclass(frozen=True)
class CosineRate(Rate):
    """Half a cosine, from the peak at the end of the warm-up down to `floor` at the last step."""

    floor: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_floor(self.floor)

    def factor(self, step: int, steps: int, warmup: int) -> float:
        done = max(0, step - warmup) / max(1, steps - warmup)
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * done)) / 2


@dataclass(frozen=True)
class CooldownRate(Rate):
    """The peak rate, then a straight line down to `floor` over the last fraction `last` of the steps.

    The cool-down removes the noise of the constant rate from the final losses.
    """

    last: float = 0.2
    floor: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_floor(self.floor)
        if not 0 < self.last < 1:
            raise InputError(f"a cool-down takes a share of the steps, between 0 and 1; got last={self.last}")

    def factor(self, step: int, steps: int, warmup: int) -> float:
        left = (steps - step) / (self.last * steps)
        return min(1.0, self.floor + (1 - self.floor) * left)


def _check_floor(floor: float) -> None:
    if not 0 <= floor <= 1:
        raise InputError(f"the floor of a rate is a share of its peak, from 0 to 1; got floor={floor}")
