"""Rules for tables with a row per model and seed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from ..metrics.bootstrap import Estimate, estimate
from ..plots.columns import ALPHA_1, ALPHA_THERE, EXCESS, LOSS, MODEL, NULL, NULL_THERE, SEED, STATE, STRONGEST
from ..table import Cell, Table, low_of
from .seed_pairs import LEAST_SEEDS, LOSS_GAP, are_too_many, differences, gaps_in_words, unless_worse
from .verdict import TRAINED, Outcome, Verdict, number


@dataclass(frozen=True)
class Higher:
    """The quantity is higher in the models `of` than in the models `than`, seed by seed.

    By default the quantity is alpha_1 less its null, since models with a slot have a lower null. It holds if all seeds
    agree and the mean difference is at least `margin`; it fails if the 95% interval of the mean lies below zero. Seeds
    whose two losses differ by more than 0.02 nats are left out, and if they are more than one in five, the models are
    confounded. With `at_equal_loss` False losses do not matter: for rows that the paper compares at unequal loss.
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
        values, gaps = (differences(runs, self.of, self.than, name) for name in (self.quantity, LOSS))
        unequal = [seed for seed, gap in gaps.items() if self.at_equal_loss and abs(gap) > LOSS_GAP]
        confounded = are_too_many(unequal, of=len(gaps))
        compared = [value for seed, value in values.items() if confounded or seed not in unequal]
        mean = estimate(torch.tensor(compared)) if compared else Estimate(*[float("nan")] * 3)
        agree = sum(difference > 0 for difference in compared)
        reason = f"mean difference {mean}, {agree} of {len(compared)} seeds agree, {gaps_in_words(gaps, unequal)}"
        return Verdict(self.claim, self._outcome(mean, agree, len(compared), confounded), reason)

    def _outcome(self, mean: Estimate, agree: int, seeds: int, confounded: bool) -> Outcome:
        if seeds < LEAST_SEEDS:
            return Outcome.UNDECIDED
        if confounded:
            return Outcome.CONFOUNDED
        if agree == seeds and mean.mean >= self.margin:
            return Outcome.HOLDS
        return Outcome.FAILS if mean.high < 0 else Outcome.UNDECIDED


@dataclass(frozen=True)
class HasSink:
    """In at least four of five seeds the quantity is above its null by `margin`, with its whole interval.

    Without a margin, an alpha_1 of .217 would be a sink where uniform attention gives .211. It fails if at most one
    seed of five shows it. By default the quantity is alpha_1, and the null is what position bias and mask alone would
    give the first token.

    baseline: a model that was trained as well. In more than one of five seeds a loss more than 0.02 nats above its
    loss makes the absence of a sink confounded.
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
        verdict = _counted(self.claim, runs, self.model, self.is_above, "seeds are above it")
        absent = verdict.outcome in (Outcome.FAILS, Outcome.UNDECIDED)
        return unless_worse(verdict, runs, self.model, self.baseline) if absent else verdict

    def is_above(self, row: Mapping[str, Cell]) -> bool:
        """Whether a run shows the sink."""
        return number(row[low_of(self.quantity)]) > number(row[self.null]) + self.margin


@dataclass(frozen=True)
class HasNoSink:
    """In at least four of five seeds `HasSink` is not the case: the other side of that rule.

    baseline: as in `HasSink`; a model that learned less well lacks a sink for that.
    """

    model: str
    baseline: str | None = None

    @property
    def claim(self) -> str:
        return f"{ALPHA_1} is not above its null by {HasSink.margin:g} in {self.model}"

    def verdict(self, runs: Table) -> Verdict:
        sink = HasSink(self.model)
        verdict = _counted(self.claim, runs, self.model, lambda row: not sink.is_above(row), "seeds are not above it")
        absent = verdict.outcome in (Outcome.HOLDS, Outcome.UNDECIDED)
        return unless_worse(verdict, runs, self.model, self.baseline) if absent else verdict


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
    shown = in_most_seeds(count, of)
    outcome = {True: Outcome.HOLDS, False: Outcome.FAILS, None: Outcome.UNDECIDED}[shown]
    return Verdict(claim, outcome, f"{count} of {of} {what}")


def in_most_seeds(count: int, of: int) -> bool | None:
    """True where at least four of five seeds show it, False where at most one does, None in between or of few seeds."""
    if of < LEAST_SEEDS:
        return None
    return True if 5 * count >= 4 * of else False if 5 * count <= of else None


def _failures(runs: Table, *models: str) -> str:
    """The first failed training of these models in words; empty if all of them ended well."""
    rows = [row for row in runs.rows if row[MODEL] in models and row.get(STATE, TRAINED) != TRAINED]
    if not rows:
        return ""
    first = rows[0]
    return f"{len(rows)} trainings failed, such as {first[MODEL]}, seed {first[SEED]}: {first[STATE]}"
