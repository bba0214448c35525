"""Rules for tables with a row per model and seed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from ..metrics.bootstrap import Estimate, estimate
from ..plots.columns import ALPHA_1, ALPHA_THERE, EXCESS, LOSS, MODEL, NULL, NULL_THERE, SEED, STATE, STRONGEST
from ..table import Cell, Table, low_of
from .verdict import TRAINED, Outcome, Verdict, number

LEAST_SEEDS = 3  # fewer decide nothing
LOSS_GAP = 0.02  # nats; runs that differ by more are not compared at equal loss


@dataclass(frozen=True)
class Higher:
    """The quantity is higher in the models `of` than in the models `than`, seed by seed.

    By default the quantity is alpha_1 less its null, since models with a slot have a lower null. It holds if all seeds
    agree and the mean difference is at least `margin`; it fails if the 95% interval of the mean lies below zero. Runs
    whose losses differ by more than 0.02 nats are confounded, unless `at_equal_loss` is False, which is for rows that
    the paper itself compares at unequal loss.
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
            return number(row[low_of(self.quantity)]) > number(row[self.null]) + self.margin

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
            strength, null = number(row[ALPHA_THERE]), number(row[NULL_THERE])
            return row[STRONGEST] in self.positions and strength > null

        return _counted(self.claim, runs, self.model, is_there, "seeds agree")


@dataclass(frozen=True)
class TrainingFails:
    """Training ends in a loss that is not finite, in at least four of five seeds."""

    model: str

    @property
    def claim(self) -> str:
        return f"the training of {self.model} fails"

    def verdict(self, runs: Table) -> Verdict:
        rows = [row for row in runs.rows if row[MODEL] == self.model]
        failed = sum(row.get(STATE, TRAINED) != TRAINED for row in rows)
        return _of_share(self.claim, failed, len(rows), "trainings failed")


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
    if not rows:
        return ""
    first = rows[0]
    return f"{len(rows)} trainings failed, such as {first[MODEL]}, seed {first[SEED]}: {first[STATE]}"


def _by_seed(runs: Table, model: str, quantity: str) -> dict[int, float]:
    return {int(number(row[SEED])): number(row[quantity]) for row in runs.rows if row[MODEL] == model}


def _loss_gap(runs: Table, of: str, than: str, seeds: Sequence[int]) -> float:
    """How much higher the loss of one model is than that of another, mean over seeds."""
    one, other = (_by_seed(runs, name, LOSS) for name in (of, than))
    return sum(one[seed] - other[seed] for seed in seeds) / max(1, len(seeds))
