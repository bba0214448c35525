"""Intervals over sequences."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import Tensor

from ..table import Cell

RESAMPLES = 2000
BY_SEQUENCE = "95% bootstrap interval over sequences"


@dataclass(frozen=True)
class Estimate:
    """A mean over sequences and its 95% percentile-bootstrap interval, NaN where there is none."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        interval = "" if math.isnan(self.low) else f" [{self.low:.3g}, {self.high:.3g}]"
        return f"{self.mean:.3g}{interval}"


def difference(before: Float[Tensor, " n"], after: Float[Tensor, " m"], paired: bool, seed: int = 0) -> Estimate:
    """The change of the mean: of the differences where sequences are paired, else with both resampled alone."""
    if paired:
        return estimate(after.double() - before.double(), seed)
    before, after = before[~before.isnan()], after[~after.isnan()]
    change = (after.double().mean() - before.double().mean()).item()
    if min(len(before), len(after)) < 2:
        return Estimate(change, math.nan, math.nan)
    rng = np.random.default_rng(seed)
    means = [_resampled(values, rng) for values in (before, after)]
    low, high = np.quantile(means[1] - means[0], (0.025, 0.975))
    return Estimate(change, float(low), float(high))


def _resampled(values: Float[Tensor, " n"], rng: np.random.Generator) -> np.ndarray:
    numbers = values.double().cpu().numpy()
    return numbers[rng.integers(len(numbers), size=(RESAMPLES, len(numbers)))].mean(1)


def estimate(per_sequence: Float[Tensor, " sequence"], seed: int = 0) -> Estimate:
    """Mean over sequences with the 2.5% and 97.5% quantiles of the means of 2,000 resamples.

    Sequences that are NaN, being too short for a position, do not count. Of one sequence there is no interval: NaN.
    """
    per_sequence = per_sequence[~per_sequence.isnan()]
    if len(per_sequence) < 2:
        return Estimate(per_sequence.double().mean().item(), math.nan, math.nan)
    low, high = np.quantile(_resampled(per_sequence, np.random.default_rng(seed)), (0.025, 0.975))
    return Estimate(per_sequence.double().mean().item(), float(low), float(high))


def ratio(after: Float[Tensor, " sequence"], before: Float[Tensor, " sequence"], seed: int = 0) -> Estimate:
    """Mean after over mean before with its 95% interval, both means taken of the same resampled sequences."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(len(before), size=(RESAMPLES, len(before)))
    top, bottom = (values.double().cpu().numpy() for values in (after, before))
    if len(top) < 2:
        return Estimate(float(top.mean() / bottom.mean()), math.nan, math.nan)
    low, high = np.quantile(top[rows].mean(1) / bottom[rows].mean(1), (0.025, 0.975))
    return Estimate(float(top.mean() / bottom.mean()), float(low), float(high))


def cells(name: str, value: Estimate) -> dict[str, Cell]:
    """An estimate as three cells: `name`, `name low`, `name high`; the last two empty where there is no interval."""
    ends = {f"{name} low": value.low, f"{name} high": value.high}
    return {name: value.mean, **{end: None if math.isnan(x) else x for end, x in ends.items()}}
