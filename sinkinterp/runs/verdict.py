"""Verdicts: what runs of several seeds say about a claim, by rules that are stated before the runs."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

import torch

from ..metrics.bootstrap import Estimate, estimate
from ..plots.columns import ALPHA_1, ALPHA_THERE, EXCESS, LOSS, MODEL, NULL, NULL_THERE, SEED, STATE, STRONGEST
from ..table import Cell, Table, high_of, low_of

TRAINED = "trained"  # the state of a run that ended well; any other text says why it did not
LEAST_SEEDS = 3  # fewer decide nothing
MOST_REASONS = 3  # more are counted instead
LOSS_GAP = 0.02  # nats; runs that differ by more are not compared at equal loss


class Outcome(StrEnum):
    """What the runs say about a claim."""

    HOLDS = "holds"
    FAILS = "fails"
    CONFOUNDED = "confounded"
    DIVERGED = "diverged"
    UNDECIDED = "undecided"
    NOT_ASKED = "not asked"


@dataclass(frozen=True)
class Verdict:
    """A claim, what the runs say about it, and the numbers that decide."""

    claim: str
    outcome: Outcome
    reason: str


@runtime_checkable
class Rule(Protocol):
    """How runs decide about a claim: a function of a table with a row per model and seed."""

    @property
    def claim(self) -> str: ...

    def verdict(self, runs: Table) -> Verdict: ...


@dataclass(frozen=True)
class Higher:
    """The quantity is higher in the models `of` than in the models `than`, seed by seed.

    By default the quantity is alpha_1 less its null, since models with a slot have a lower null. It holds if all seeds
    agree and the mean difference is at least `margin`; it fails if the 95% interval of the mean
    lies below zero. Runs whose losses differ by more than 0.02 nats are confounded, unless `at_equal_loss` is False,
    which is for rows that the paper itself compares at unequal loss.
    """

    of: str
    than: str
    quantity: str = EXCESS
    margin: float = 0.05
    at_equal_loss: bool = True

    @property
    def claim(self) -> str:
        return f"{self.quantity} is higher in {self.of} than in {self.than}"

    def verdict(self, runs: Table) -> Verdict:
        failed = _failures(runs, self.of, self.than)
        if failed:
            return Verdict(self.claim, Outcome.DIVERGED, failed)
        high, low = (_by_seed(runs, name, self.quantity) for name in (self.of, self.than))
        seeds = sorted(high.keys() & low.keys())
        differences = [high[seed] - low[seed] for seed in seeds]
        mean = estimate(torch.tensor(differences)) if seeds else Estimate(*[float("nan")] * 3)
        gap = _loss_gap(runs, self.of, self.than, seeds)
        agree = sum(difference > 0 for difference in differences)
        reason = f"mean difference {mean}, {agree} of {len(seeds)} seeds agree, losses differ by {gap:+.3f} nats"
        return Verdict(self.claim, self._outcome(mean, agree, len(seeds), gap), reason)

    def _outcome(self, mean: Estimate, agree: int, seeds: int, gap: float) -> Outcome:
        if seeds < LEAST_SEEDS:
            return Outcome.UNDECIDED
        if self.at_equal_loss and abs(gap) > LOSS_GAP:
            return Outcome.CONFOUNDED
        if agree == seeds and mean.mean >= self.margin:
            return Outcome.HOLDS
        return Outcome.FAILS if mean.high < 0 else Outcome.UNDECIDED


@dataclass(frozen=True)
class HasSink:
    """In at least four of five seeds the quantity is above its null by `margin`, with its whole interval.

    Without a margin, an alpha_1 of .217 would be a sink where uniform attention gives .211.

    It fails if at most one seed of five shows it. A model without a sink that has a loss more than 0.02 nats above
    `baseline`'s is confounded: it was not trained as well. By default the quantity is alpha_1, and the null is what
    position bias and mask alone would give the first token.
    """

    model: str
    quantity: str = ALPHA_1
    null: str = NULL
    baseline: str | None = None
    margin: float = 0.05

    @property
    def claim(self) -> str:
        return f"{self.quantity} is above its null by {self.margin:g} in {self.model}"

    def verdict(self, runs: Table) -> Verdict:
        def is_above(row: Mapping[str, Cell]) -> bool:
            return _number(row[low_of(self.quantity)]) > _number(row[self.null]) + self.margin

        verdict = _counted(self.claim, runs, self.model, is_above, "seeds are above it")
        if self.baseline is None or verdict.outcome not in (Outcome.FAILS, Outcome.UNDECIDED):
            return verdict
        gap = _loss_gap(runs, self.model, self.baseline, sorted(_by_seed(runs, self.model, LOSS)))
        if not gap > LOSS_GAP:
            return verdict
        reason = f"{verdict.reason}, and its loss is {gap:.3f} nats above that of {self.baseline}"
        return Verdict(self.claim, Outcome.CONFOUNDED, reason)


@dataclass(frozen=True)
class SinkAt:
    """In at least four of five seeds the position of this number, from 1, is the strongest, and above its null."""

    model: str
    positions: Sequence[int]

    @property
    def claim(self) -> str:
        return f"the strongest position of {self.model} is {' or '.join(map(str, self.positions))}, above its null"

    def verdict(self, runs: Table) -> Verdict:
        def is_there(row: Mapping[str, Cell]) -> bool:
            strength, null = _number(row[ALPHA_THERE]), _number(row[NULL_THERE])
            return row[STRONGEST] in self.positions and strength > null

        return _counted(self.claim, runs, self.model, is_there, "seeds agree")


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
class Asked:
    """A rule of one experiment: a function that says whether the rows show the claim (None: undecided), and why."""

    claim: str
    decide: Callable[[Table], tuple[bool | None, str]]

    def verdict(self, runs: Table) -> Verdict:
        shows, reason = self.decide(runs)
        outcome = {True: Outcome.HOLDS, False: Outcome.FAILS, None: Outcome.UNDECIDED}[shows]
        return Verdict(self.claim, outcome, reason)


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
class TrainingFails:
    """Training ends in a loss that is not finite, in at least four of five seeds."""

    model: str

    @property
    def claim(self) -> str:
        return f"the training of {self.model} fails"

    def verdict(self, runs: Table) -> Verdict:
        rows = [row for row in runs.rows if row[MODEL] == self.model]
        return _of_share(
            self.claim, sum(row.get(STATE, TRAINED) != TRAINED for row in rows), len(rows), "trainings failed"
        )


@dataclass(frozen=True)
class NotAsked:
    """A claim that runs at this scale cannot be asked about."""

    claim: str
    why: str

    def verdict(self, runs: Table) -> Verdict:
        return Verdict(self.claim, Outcome.NOT_ASKED, self.why)


def _interval(row: Mapping[str, Cell], column: str) -> tuple[float, float, float]:
    """A cell and the ends of its interval; without an interval the cell itself is both ends."""
    value = _number(row[column])
    low, high = (row.get(end(column)) for end in (low_of, high_of))
    return value, value if low is None else _number(low), value if high is None else _number(high)


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


def _counted(claim: str, runs: Table, model: str, shows: Callable[[Mapping[str, Cell]], bool], what: str) -> Verdict:
    failed = _failures(runs, model)
    if failed:
        return Verdict(claim, Outcome.DIVERGED, failed)
    rows = [row for row in runs.rows if row[MODEL] == model]
    return _of_share(claim, sum(shows(row) for row in rows), len(rows), what)


def _of_share(claim: str, count: int, of: int, what: str) -> Verdict:
    reason = f"{count} of {of} {what}"
    if of < LEAST_SEEDS:
        return Verdict(claim, Outcome.UNDECIDED, reason)
    outcome = Outcome.HOLDS if 5 * count >= 4 * of else Outcome.FAILS if 5 * count <= of else Outcome.UNDECIDED
    return Verdict(claim, outcome, reason)


def _failures(runs: Table, *models: str) -> str:
    """The first failed training of these models in words; empty if all of them ended well."""
    rows = [row for row in runs.rows if row[MODEL] in models and row.get(STATE, TRAINED) != TRAINED]
    return (
        f"{len(rows)} trainings failed, such as {rows[0][MODEL]}, seed {rows[0][SEED]}: {rows[0][STATE]}"
        if rows
        else ""
    )


def _by_seed(runs: Table, model: str, quantity: str) -> dict[int, float]:
    return {int(_number(row[SEED])): _number(row[quantity]) for row in runs.rows if row[MODEL] == model}


def _loss_gap(runs: Table, of: str, than: str, seeds: Sequence[int]) -> float:
    """How much higher the loss of one model is than that of another, mean over seeds."""
    one, other = (_by_seed(runs, name, LOSS) for name in (of, than))
    return sum(one[seed] - other[seed] for seed in seeds) / max(1, len(seeds))


def _number(cell: Cell) -> float:
    return float("nan") if cell is None else float(cell)
