"""Means over sequences with their 95% intervals: Student's t of few values, percentile bootstraps of many.

Percentile bootstraps cover 75% at n=3 and 89% at n=10. A rate that is 0 or 1 in every sequence has the exact interval
of one trial a sequence (Clopper and Pearson 1934), and so has a change of rates that is equal in all pairs. Another
rate that is equal in all has Wilson's (1927). Intervals of shares, sizes and cosines end where these end: Student's t
alone knows no bounds.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..attention import numbers
from ..checks import LARGEST, InputError, whole_number
from ..table import Cell, high_of, low_of
from .metric import PerSequence

Range = tuple[float, float]  # of a quantity: the least and the largest value that it can have
REALS, SIZES, SHARES, COSINES = (-math.inf, math.inf), (0.0, math.inf), (0.0, 1.0), (-1.0, 1.0)
RESAMPLES = 2000
KEPT = 1024  # sequences; of more, the resamples are drawn again each time, since they take 16 kB a sequence
_Z = 1.96
_SAME = 1e-5  # relative rounding errors of what is computed in float32
FEW = 30  # fewer values have intervals by Student's t
_T = np.array([
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048,
])  # fmt: skip  # the 97.5% quantiles of Student's t with 1 to 28 degrees of freedom


def intervals(n: int, over: str = "sequences") -> str:
    """Says what the intervals of means over `n` values are. One value has none."""
    if n < 2:
        return "one text, so no intervals"
    if n >= FEW:
        return f"95% bootstrap interval over {over}"
    return f"95% interval over {over}, Wilson's of equal shares, else by Student's t (quotients: Fieller's)"


@dataclass(frozen=True, eq=False, repr=False)
class Estimate:
    """A mean over sequences and its 95% interval, NaN without one. It prints as 0.8 [0.71, 0.87], f"{it:.0%}" as 80%.

    Compare one of its numbers: `estimate.low > 0.2`. Two estimates are equal if all three numbers are.
    """

    mean: float
    low: float
    high: float

    def __format__(self, spec: str) -> str:
        """The mean and the ends of its interval, each as Python formats a number."""
        mean, low, high = (format(x, spec or ".3g") for x in (self.mean, self.low, self.high))
        return mean if math.isnan(self.low) else f"{mean} [{low}, {high}]"

    def __repr__(self) -> str:
        return format(self, "")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Estimate) and self._numbers() == other._numbers()

    def __hash__(self) -> int:
        return hash(self._numbers())

    def _numbers(self) -> tuple[float | None, ...]:
        return tuple(None if math.isnan(x) else x for x in (self.mean, self.low, self.high))

    def __float__(self) -> float:
        return self.mean

    def within(self, ends: Range) -> "Estimate":
        """The estimate of a quantity of this range, which its interval does not leave."""
        low, high = max(self.low, ends[0]), min(self.high, ends[1])
        return Estimate(self.mean, min(low, self.mean), max(high, self.mean))

    def _compared(self, other: object) -> NoReturn:
        raise InputError("an estimate has a mean, a low and a high end; compare one of them: estimate.low > 0.2")

    __lt__ = __le__ = __gt__ = __ge__ = _compared


def estimate(values: PerSequence, seed: int = 0) -> Estimate:
    """Mean over sequences with its interval: the 2.5% and 97.5% quantiles of the means of 2,000 resamples.

    Of fewer than 30 values it is the interval of Student's t. Sequences that are NaN, because they are too short for a
    position, do not count. One sequence has no interval: NaN.
    """
    values, seed = numbers(values, "sequence", "values"), whole_number(seed, "seed", 0, LARGEST)
    values = values[~values.isnan()]
    mean = values.double().mean().item()
    if len(values) < 2:
        return Estimate(mean, math.nan, math.nan)
    if len(values) < FEW:
        return _by_t(mean, values.double().var().item() / len(values), len(values) - 1)
    return Estimate(mean, *_interval(_resampled_means(values, seed)))


def rate(values: PerSequence, seed: int = 0) -> Estimate:
    """`estimate` of shares, 0..1: within 0 and 1, and wider than a point where every sequence has the same share."""
    found = estimate(values, seed).within(SHARES)
    if math.isnan(found.low) or found.high - found.low > 1e-9:
        return found
    p, n = found.mean, int((~values.isnan()).sum())
    if p in SHARES:
        beyond = 1 - 0.025 ** (1 / n)
        return Estimate(p, 1 - beyond if p else 0.0, 1.0 if p else beyond)
    centre, half = (p + _Z**2 / 2 / n), _Z * math.sqrt(p * (1 - p) / n + _Z**2 / 4 / n**2)
    return Estimate(p, *((centre + sign * half) / (1 + _Z**2 / n) for sign in (-1, 1)))


def changes_of(ends: Range) -> Range:
    """The range of the changes of a quantity."""
    return ends[0] - ends[1], ends[1] - ends[0]


def change_of_rates(before: Float[Tensor, " n"], after: Float[Tensor, " m"], paired: bool, seed: int = 0) -> Estimate:
    """`difference` of shares, -1..1: where every pair changes by the same, its interval is wider than a point.

    Its ends are exact for what one more pair may do that none of these did.
    """
    found = difference(before, after, paired, seed).within(changes_of(SHARES))
    if not paired or math.isnan(found.low) or found.high - found.low > 1e-9:
        return found
    beyond = 1 - 0.025 ** (1 / int((~(after - before).isnan()).sum()))
    return Estimate(found.mean, found.mean - beyond * (1 + found.mean), found.mean + beyond * (1 - found.mean))


def _by_t(mean: float, variance: float, degrees: float) -> Estimate:
    """A mean with the interval of Student's t, from the variance of the mean."""
    half = _T[min(int(degrees), len(_T)) - 1].item() * variance**0.5
    return Estimate(mean, mean - half, mean + half)


def difference(before: Float[Tensor, " n"], after: Float[Tensor, " m"], paired: bool, seed: int = 0) -> Estimate:
    """The change of the mean. With `paired`, the mean of the differences; else each side varies by itself.

    Of fewer than 30 values on a side the interval is Welch's.
    """
    before, after = numbers(before, "sequence", "values before"), numbers(after, "sequence", "values after")
    if paired and len(before) != len(after):
        raise InputError(f"{len(before)} and {len(after)} values are not pairs; give equal numbers, or paired=False")
    if paired:
        return estimate(after.double() - before.double(), seed)
    before, after = before[~before.isnan()], after[~after.isnan()]
    change = (after.double().mean() - before.double().mean()).item()
    if min(len(before), len(after)) < 2:
        return Estimate(change, math.nan, math.nan)
    if min(len(before), len(after)) < FEW:
        return _by_welch(change, before.double(), after.double())
    means_before, means_after = _resampled_means(before, seed), _resampled_means(after, seed + 1)
    return Estimate(change, *_interval(means_after - means_before))


def _by_welch(change: float, before: Tensor, after: Tensor) -> Estimate:
    """A change with Welch's interval for groups of unlike variances."""
    parts = [side.var().item() / len(side) for side in (before, after)]
    total = sum(parts)
    freedom = [part**2 / (len(side) - 1) for part, side in zip(parts, (before, after), strict=True)]
    return _by_t(change, total, total**2 / sum(freedom) if total else 1)


def ratio(after: PerSequence, before: PerSequence, seed: int = 0) -> Estimate:
    """Mean after over mean before with its 95% interval; every resample takes the same sequences of both.

    Of fewer than 30 pairs the interval is Fieller's (1954). No interval where the mean before may be 0, unless the
    quotient is the same in every pair.
    """
    quotient = (after.double().mean() / before.double().mean()).item()
    if len(before) > 1 and (after - quotient * before).abs().max() <= _SAME * before.abs().max():
        return Estimate(quotient, quotient, quotient)
    if 2 <= len(before) < FEW:
        return _by_fieller(quotient, after.double(), before.double())
    if len(before) < 2 or not (means := _resampled_means(before, seed)).all():
        return Estimate(quotient, math.nan, math.nan)
    return Estimate(quotient, *_interval(_resampled_means(after, seed) / means))


def _by_fieller(quotient: float, after: Tensor, before: Tensor) -> Estimate:
    """A quotient of means of pairs: those q for which Student's t does not tell the mean of after - q before from 0."""
    n, mean = len(before), before.mean().item()
    (a, ab), (_, b) = (torch.cov(torch.stack((after, before))) / n).tolist()
    t = _T[n - 2].item()
    g = t**2 * b / mean**2 if mean else math.inf
    if g >= 1:
        return Estimate(quotient, math.nan, math.nan)
    centre = (quotient - t**2 * ab / mean**2) / (1 - g)
    spread = a - 2 * quotient * ab + quotient**2 * b - t**2 * (a * b - ab**2) / mean**2
    half = t * max(spread, 0) ** 0.5 / abs(mean) / (1 - g)
    return Estimate(quotient, centre - half, centre + half)


def estimate_cells(column: str, value: Estimate) -> dict[str, Cell]:
    """An estimate as three cells of a row: its mean and the two ends of its interval, None without one."""
    low, high = (None if math.isnan(end) else end for end in (value.low, value.high))
    return {column: value.mean, low_of(column): low, high_of(column): high}


def mean_cells(column: str, values: PerSequence, ends: Range = REALS) -> dict[str, Cell]:
    """The mean over sequences of a quantity of this range as three cells of a row."""
    return estimate_cells(column, estimate(values).within(ends))


def rate_cells(column: str, values: PerSequence) -> dict[str, Cell]:
    """The `rate` of shares over sequences as three cells of a row."""
    return estimate_cells(column, rate(values))


def _resampled_means(values: PerSequence, seed: int) -> np.ndarray:
    """The mean of every resample. A seed draws the same sequences for values of the same length."""
    seed = whole_number(seed, "seed", 0, LARGEST)
    counts = _counts if len(values) <= KEPT else _counts.__wrapped__
    return counts(len(values), seed) @ values.double().cpu().numpy() / len(values)


@lru_cache(maxsize=8)
def _counts(n: int, seed: int) -> np.ndarray:
    """How often every resample takes every sequence: `resample sequence`."""
    drawn = np.random.default_rng(seed).integers(n, size=(RESAMPLES, n))
    drawn += n * np.arange(RESAMPLES)[:, None]
    return np.bincount(drawn.ravel(), minlength=RESAMPLES * n).reshape(RESAMPLES, n).astype(np.float64)


def _interval(means: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)
