"""Rules for any table: they compare cells by their intervals."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..metrics.bootstrap import Estimate
from ..plots.columns import MODEL, SEED
from ..table import Cell, Table, high_of, low_of
from .verdict import Outcome, Verdict, number

MOST_REASONS = 3  # more are counted instead


@dataclass(frozen=True)
class Above:
    """A cell is above another: its interval lies above the other's interval, which `factor` and `shift` may change.

    `of` and `than` choose rows by their cells; every pair of rows that agree in the columns `by` must show it. It fails
    where an interval lies below the other's. `other_column` is the column of the other cell, where it is another.
    """

    claim: str
    column: str
    of: Mapping[str, Cell]
    than: Mapping[str, Cell]
    factor: float = 1.0
    shift: float = 0.0
    by: Sequence[str] = (MODEL, SEED)
    other_column: str | None = None

    def verdict(self, runs: Table) -> Verdict:
        other = self.other_column or self.column
        pairs = [
            (high, low)
            for high in runs.where(**self.of).rows
            for low in runs.where(**self.than).rows
            if all(high.get(name) == low.get(name) for name in self.by) and None not in (high[self.column], low[other])
        ]
        outcomes, reasons = [], []
        for high, low in pairs:
            bound = Estimate(*(self.factor * value + self.shift for value in _interval(low, other)))
            value = Estimate(*_interval(high, self.column))
            outcomes.append(_beside(value.low > bound.high, value.high < bound.low))
            reasons.append(f"{value} against {bound}")
        return _together(self.claim, outcomes, reasons)


@dataclass(frozen=True)
class Within:
    """The intervals of a cell lie between two bounds; it fails where one lies outside them."""

    claim: str
    column: str
    of: Mapping[str, Cell]
    low: float = -math.inf
    high: float = math.inf

    def verdict(self, runs: Table) -> Verdict:
        outcomes, reasons = [], []
        for row in runs.where(**self.of).rows:
            if row[self.column] is not None:
                value = Estimate(*_interval(row, self.column))
                is_inside = self.low <= value.low and value.high <= self.high
                outcomes.append(_beside(is_inside, value.low > self.high or value.high < self.low))
                reasons.append(str(value))
        return _together(self.claim, outcomes, reasons)


@dataclass(frozen=True)
class Asked:
    """A rule of one experiment: a function that says whether the rows show the claim (None: undecided), and why."""

    claim: str
    decide: Callable[[Table], tuple[bool | None, str]]

    def verdict(self, runs: Table) -> Verdict:
        shows, reason = self.decide(runs)
        outcome = {True: Outcome.HOLDS, False: Outcome.FAILS, None: Outcome.UNDECIDED}[shows]
        return Verdict(self.claim, outcome, reason)


@dataclass(frozen=True)
class NotAsked:
    """A claim that runs at this scale cannot be asked about."""

    claim: str
    why: str

    def verdict(self, runs: Table) -> Verdict:
        return Verdict(self.claim, Outcome.NOT_ASKED, self.why)


def _interval(row: Mapping[str, Cell], column: str) -> tuple[float, float, float]:
    """A cell and the ends of its interval; without an interval the cell itself is both ends."""
    value = number(row[column])
    low, high = (row.get(end(column)) for end in (low_of, high_of))
    return value, value if low is None else number(low), value if high is None else number(high)


def _beside(shows: bool, shows_opposite: bool) -> Outcome:
    return Outcome.HOLDS if shows else Outcome.FAILS if shows_opposite else Outcome.UNDECIDED


def _together(claim: str, outcomes: Sequence[Outcome], reasons: Sequence[str]) -> Verdict:
    """One verdict for several rows: it holds if it holds for all, and fails if it fails for one."""
    if not outcomes:
        return Verdict(claim, Outcome.NOT_ASKED, "no row here can be asked")
    order = (Outcome.FAILS, Outcome.UNDECIDED, Outcome.HOLDS)
    outcome = next(outcome for outcome in order if outcome in outcomes)
    if len(reasons) <= MOST_REASONS:
        return Verdict(claim, outcome, "; ".join(reasons))
    counts = ", ".join(f"{each} in {outcomes.count(each)}" for each in order if each in outcomes)
    example = reasons[outcomes.index(outcome)]
    return Verdict(claim, outcome, f"{counts} of {len(outcomes)} comparisons; for example {example}")
