"""Means over sequences with their 95% intervals, by Student's t: Welch's of two groups, Fieller's of a quotient.

A rate that is 0 or 1 in every sequence has the exact interval of one trial a sequence (Clopper and Pearson 1934). So
has a change of rates that is equal in all pairs. Another rate that is equal in all has Wilson's (1927). Intervals of
shares, sizes and cosines end where these end: Student's t alone knows no bounds.
"""

import math
from dataclasses import dataclass
from typing import NoReturn

import torch
from jaxtyping import Float
from scipy.special import ndtri, stdtrit
from torch import Tensor

from ..attention import numbers
from ..checks import InputError
from ..table import Cell, high_of, low_of
from .metric import PerSequence

Range = tuple[float, float]  # of a quantity: the least and the largest value that it can have
REALS, SIZES, SHARES, COSINES = (-math.inf, math.inf), (0.0, math.inf), (0.0, 1.0), (-1.0, 1.0)
_UPPER = 0.975  # the quantile at the upper end of a 95% interval
_Z = float(ndtri(_UPPER))
_SAME = 1e-5  # relative rounding errors of what is computed in float32


def intervals(n: int, over: str = "sequences") -> str:
    """Says what the intervals of means over `n` values are. One value has none."""
    if n < 2:
        return "one text, so no intervals"
    return f"95% interval over {over}: equal rates Clopper-Pearson or Wilson, else Student's t (quotients: Fieller's)"


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


def estimate(values: PerSequence) -> Estimate:
    """Mean over sequences with the interval of Student's t.

    Sequences that are NaN, because they are too short for a position, do not count. One sequence has no interval: NaN.
    """
    values = _known(numbers(values, "sequence", "values"))
    mean, n = values.mean().item(), len(values)
    return _by_t(mean, values.var().item() / n, n - 1) if n > 1 else Estimate(mean, math.nan, math.nan)


def rate(values: PerSequence) -> Estimate:
    """`estimate` of shares, 0..1: within 0 and 1, and wider than a point where every sequence has the same share."""
    found = estimate(values).within(SHARES)
    if math.isnan(found.low) or found.high - found.low > 1e-9:
        return found
    p, n = found.mean, len(_known(values))
    if p in SHARES:
        beyond = 1 - (1 - _UPPER) ** (1 / n)
        return Estimate(p, 1 - beyond if p else 0.0, 1.0 if p else beyond)
    centre, half = (p + _Z**2 / 2 / n), _Z * math.sqrt(p * (1 - p) / n + _Z**2 / 4 / n**2)
    return Estimate(p, *((centre + sign * half) / (1 + _Z**2 / n) for sign in (-1, 1)))


def changes_of(ends: Range) -> Range:
    """The range of the changes of a quantity."""
    return ends[0] - ends[1], ends[1] - ends[0]


def change_of_rates(before: Float[Tensor, " n"], after: Float[Tensor, " m"], paired: bool) -> Estimate:
    """`difference` of shares, -1..1: where every pair changes by the same, its interval is wider than a point.

    Its ends are exact for what one more pair may do that none of these did.
    """
    found = difference(before, after, paired).within(changes_of(SHARES))
    if not paired or math.isnan(found.low) or found.high - found.low > 1e-9:
        return found
    beyond = 1 - (1 - _UPPER) ** (1 / len(_known(after - before)))
    return Estimate(found.mean, found.mean - beyond * (1 + found.mean), found.mean + beyond * (1 - found.mean))


def difference(before: Float[Tensor, " n"], after: Float[Tensor, " m"], paired: bool) -> Estimate:
    """The change of the mean. With `paired`, the mean of the differences; else each side varies by itself (Welch)."""
    before, after = numbers(before, "sequence", "values before"), numbers(after, "sequence", "values after")
    if paired and len(before) != len(after):
        raise InputError(f"{len(before)} and {len(after)} values are not pairs; give equal numbers, or paired=False")
    if paired:
        return estimate(after.double() - before.double())
    sides = _known(before), _known(after)
    change = (sides[1].mean() - sides[0].mean()).item()
    if min(map(len, sides)) < 2:
        return Estimate(change, math.nan, math.nan)
    parts = [side.var().item() / len(side) for side in sides]
    freedom = sum(part**2 / (len(side) - 1) for part, side in zip(parts, sides, strict=True))
    return _by_t(change, sum(parts), sum(parts) ** 2 / freedom if freedom else 1)


def ratio(after: PerSequence, before: PerSequence) -> Estimate:
    """Mean after over mean before, of pairs, with Fieller's interval (1954).

    It holds those q for which Student's t does not tell the mean of after - q before from 0. No interval where the mean
    before may be 0, unless the quotient is the same in every pair.
    """
    after, before, n = after.double(), before.double(), len(before)
    mean = before.mean().item()
    quotient = (after.mean() / before.mean()).item()
    if n < 2:
        return Estimate(quotient, math.nan, math.nan)
    if (after - quotient * before).abs().max() <= _SAME * before.abs().max():
        return Estimate(quotient, quotient, quotient)
    (a, ab), (_, b) = (torch.cov(torch.stack((after, before))) / n).tolist()
    t = _quantile(n - 1)
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


def _known(values: Tensor) -> Tensor:
    return values[~values.isnan()].double()


def _quantile(degrees: float) -> float:
    """The 97.5% quantile of Student's t with this many whole degrees, in three decimals, as stored verdicts have it."""
    return round(float(stdtrit(int(degrees), _UPPER)), 3)


def _by_t(mean: float, variance: float, degrees: float) -> Estimate:
    """A mean with the interval of Student's t, from the variance of the mean."""
    half = _quantile(degrees) * variance**0.5
    return Estimate(mean, mean - half, mean + half)
