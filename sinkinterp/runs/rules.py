"""Rules of verdicts: what the rows of an experiment say about a claim.

`Above` and `Within` compare cells by their intervals, in any table. `Higher`, `HasSink`, `HasNoSink`, `SinkOrNone`,
`SinkAt` and `TrainingFails` count seeds, in a table with a row per model and seed. They raise InputError where they
would judge nothing: for a model that has no row, for a trained model without the number, for a baseline of fewer than
three seeds.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

import torch

from ..errors import InputError
from ..metrics.bootstrap import Estimate, estimate
from ..report.columns import (
    ALPHA_1,
    ALPHA_HEAD,
    ALPHA_SLOT,
    ALPHA_THERE,
    EXCESS,
    LOSS,
    MODEL,
    NULL_HEAD,
    NULL_THERE,
    SEED,
    SINK_1,
    SLOT_RATE,
    STATE,
    STRONGEST,
)
from ..table import NULL, Cell, Table, high_of, low_of

TRAINED = "trained"  # the state of a run that ended well; any other text says why it did not
MOST_REASONS = 3  # more are counted instead
LEAST_SEEDS = 3  # fewer decide nothing
LOSS_GAP = 0.02  # nats; runs that differ by more are not compared at equal loss
MARGIN = 0.05  # by which a sink is above its null; also the share of sinks, of all sequences and heads, that counts
_RATES = {ALPHA_1: SINK_1, ALPHA_SLOT: SLOT_RATE}  # the share of sinks beside a mean attention


class Outcome(StrEnum):
    """What the runs say about a claim."""

    HOLDS = "holds"
    FAILS = "fails"
    CONFOUNDED = "confounded"
    DIVERGED = "diverged"
    UNDECIDED = "undecided"
    NOT_ASKED = "not asked"
    SINK = "sink"
    NO_SINK = "no sink"


_OUTCOMES = {True: Outcome.HOLDS, False: Outcome.FAILS, None: Outcome.UNDECIDED}  # by whether the claim is shown


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


@runtime_checkable
class OfModels(Protocol):
    """A rule that needs the rows of these models. Without one of them it cannot be asked."""

    @property
    def models(self) -> tuple[str, ...]: ...


def number(cell: Cell) -> float:
    """The number in a cell; NaN where there is none."""
    return float("nan") if cell is None else float(cell)


def standing(verdicts: Sequence[Verdict]) -> str:
    """How many rules hold, in words; empty where none says so, as in a list of models with a sink and without one."""
    judged = [verdict for verdict in verdicts if verdict.outcome is not Outcome.NOT_ASKED]
    hold = sum(verdict.outcome is Outcome.HOLDS for verdict in judged)
    if not judged or any(verdict.outcome in (Outcome.SINK, Outcome.NO_SINK) for verdict in judged):
        return ""
    if hold == len(judged):
        return "the rule holds" if hold == 1 else f"all {hold} rules hold"
    return f"{hold} of {len(judged)} rules hold"


@dataclass(frozen=True)
class Above:
    """A cell is above another: its interval lies above the other's interval, which `factor` and `shift` may change.

    `of` and `than` choose rows by their cells. Every pair of rows that agree in the columns `by` must show it. It fails
    where an interval lies below the other's. `other_column` is the column of the other cell where that differs.
    """

    claim: str
    column: str
    of: Mapping[str, Cell]
    than: Mapping[str, Cell]
    factor: float = 1.0
    shift: float = 0.0
    by: Sequence[str] = (MODEL, SEED)
    other_column: str | None = None

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise InputError(f"a factor is above 0, since another would turn the interval round; got {self.factor}")

    def verdict(self, runs: Table) -> Verdict:
        other = self.other_column or self.column
        if failed := _failed([*runs.where(**self.of).rows, *runs.where(**self.than).rows]):
            return Verdict(self.claim, Outcome.DIVERGED, failed)
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
        return _together(self.claim, outcomes, _named([high for high, _ in pairs], reasons))


@dataclass(frozen=True)
class Within:
    """The intervals of a cell lie between two bounds. It fails where one lies outside them."""

    claim: str
    column: str
    of: Mapping[str, Cell]
    low: float = -math.inf
    high: float = math.inf

    def verdict(self, runs: Table) -> Verdict:
        outcomes, reasons = [], []
        if failed := _failed(runs.where(**self.of).rows):
            return Verdict(self.claim, Outcome.DIVERGED, failed)
        rows = [row for row in runs.where(**self.of).rows if row[self.column] is not None]
        for row in rows:
            value = Estimate(*_interval(row, self.column))
            is_inside = self.low <= value.low and value.high <= self.high
            outcomes.append(_beside(is_inside, value.low > self.high or value.high < self.low))
            reasons.append(str(value))
        return _together(self.claim, outcomes, _named(rows, reasons))


@dataclass(frozen=True)
class FunctionRule:
    """A rule of one experiment: a function that says whether the rows show the claim (None: undecided), and why.

    models: those whose rows it needs.
    """

    claim: str
    decide: Callable[[Table], tuple[bool | None, str]]
    models: tuple[str, ...] = ()

    def verdict(self, runs: Table) -> Verdict:
        shows, reason = self.decide(runs)
        return Verdict(self.claim, _OUTCOMES[shows], reason)


@dataclass(frozen=True)
class OfEach:
    """A function rule for every model by itself: it holds if it holds for all, and fails if it fails for one."""

    rule: FunctionRule

    @property
    def claim(self) -> str:
        return self.rule.claim

    def verdict(self, runs: Table) -> Verdict:
        names = dict.fromkeys(str(name) for name in runs.column(MODEL))
        verdicts = {name: self.rule.verdict(runs.where(**{MODEL: name})) for name in names}
        if len(verdicts) == 1:
            return next(iter(verdicts.values()))
        reasons = [f"{name}, {verdict.reason}" for name, verdict in verdicts.items()]
        return _together(self.claim, [verdict.outcome for verdict in verdicts.values()], reasons)


@dataclass(frozen=True)
class NotAsked:
    """A claim that models of this scale cannot answer."""

    claim: str
    why: str

    def verdict(self, runs: Table) -> Verdict:
        return Verdict(self.claim, Outcome.NOT_ASKED, self.why)


def _named(rows: Sequence[Mapping[str, Cell]], reasons: Sequence[str]) -> list[str]:
    """The reasons of rows after the names of their models, if these differ."""
    names = [row.get(MODEL) for row in rows]
    return [f"{name}, {why}" if len(set(names)) > 1 else why for name, why in zip(names, reasons, strict=True)]


def _interval(row: Mapping[str, Cell], column: str) -> tuple[float, float, float]:
    """A cell and the ends of its interval; without an interval the cell itself is both ends."""
    value = _number_in(row, column)
    low, high = (row.get(end(column)) for end in (low_of, high_of))
    return value, value if low is None else number(low), value if high is None else number(high)


def _beside(shows: bool, shows_opposite: bool) -> Outcome:
    return Outcome.HOLDS if shows else Outcome.FAILS if shows_opposite else Outcome.UNDECIDED


def _together(claim: str, outcomes: Sequence[Outcome], reasons: Sequence[str]) -> Verdict:
    """One verdict for several rows: it holds if it holds for all, and fails if it fails for one, which stands first."""
    if not outcomes:
        return Verdict(claim, Outcome.NOT_ASKED, "no row here can be asked")
    order = (Outcome.FAILS, Outcome.UNDECIDED, Outcome.HOLDS)
    outcome = next(outcome for outcome in order if outcome in outcomes)
    if len(reasons) <= MOST_REASONS:
        in_order = sorted(zip(outcomes, reasons, strict=True), key=lambda pair: order.index(pair[0]))
        differ = len(set(outcomes)) > 1
        return Verdict(claim, outcome, "; ".join(f"{each}: {why}" if differ else why for each, why in in_order))
    counts = ", ".join(f"{each} in {outcomes.count(each)}" for each in order if each in outcomes)
    example = reasons[outcomes.index(outcome)]
    return Verdict(claim, outcome, f"{counts} of {len(outcomes)} comparisons; for example {example}")


@dataclass(frozen=True)
class Higher:
    """The quantity is higher in the models `of` than in the models `than`, seed by seed.

    By default the quantity is alpha_1 less its null, since models with a slot have a lower null. It holds if all seeds
    agree and the mean difference is at least `margin`. It fails if the 95% interval of the mean lies below zero. Seeds
    whose two losses differ by more than 0.02 nats are left out. If they are more than one in five, the models are
    confounded. With `at_equal_loss` False losses do not matter: for rows that the paper compares at unequal loss.
    """

    of: str
    than: str
    quantity: str = EXCESS
    margin: float = 0.05
    at_equal_loss: bool = True

    @property
    def models(self) -> tuple[str, ...]:
        return self.of, self.than

    @property
    def claim(self) -> str:
        return f"{self.quantity} is higher in {self.of} than in {self.than}"

    def verdict(self, runs: Table) -> Verdict:
        failed = _failures(runs, self.of, self.than)
        if failed:
            return Verdict(self.claim, Outcome.DIVERGED, failed)
        values, gaps = (_differences(runs, self.of, self.than, name) for name in (self.quantity, LOSS))
        unequal = [seed for seed, gap in gaps.items() if self.at_equal_loss and abs(gap) > LOSS_GAP]
        confounded = _are_too_many(unequal, of=len(gaps))
        compared = [value for seed, value in values.items() if confounded or seed not in unequal]
        mean = estimate(torch.tensor(compared)) if compared else Estimate(*[float("nan")] * 3)
        agree = sum(difference > 0 for difference in compared)
        reason = f"mean difference {mean}, {agree} of {len(compared)} seeds agree, {_gaps_in_words(gaps, unequal)}"
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
class _OfModel:
    """A rule about one model. Where that learned less well than `baseline`, the absence of a sink is confounded.

    That is a loss more than 0.02 nats above the baseline's in more than one of five seeds.
    """

    model: str
    baseline: str | None = field(default=None, kw_only=True)

    @property
    def models(self) -> tuple[str, ...]:
        return (self.model,) if self.baseline is None else (self.model, self.baseline)


@dataclass(frozen=True)
class HasSink(_OfModel):
    """In at least four of five seeds the quantity is above its null by `margin`, with its whole interval.

    Without a margin, an alpha_1 of .217 would be a sink where uniform attention gives .211. By default the quantity is
    alpha_1, and the null is what position bias and mask alone would give the first token. It fails if at least four of
    five seeds have no sink at all; see `sink_in`.
    """

    quantity: str = ALPHA_1
    null: str = NULL
    margin: float = MARGIN

    @property
    def claim(self) -> str:
        return f"{self.quantity} is above its null by {self.margin:g} in {self.model}"

    def verdict(self, runs: Table) -> Verdict:
        verdict = _counted(self.claim, runs, self.model, self.sink_in, _ABOVE)
        absent = verdict.outcome in (Outcome.FAILS, Outcome.UNDECIDED)
        return _unless_worse(verdict, runs, self.model, self.baseline) if absent else verdict

    def sink_in(self, row: Mapping[str, Cell]) -> bool | None:
        """Whether a run has a sink: True where its mean over heads is one, False where no head is, None in between.

        In between, the mean is not above its null, but more than `margin` of all sequences and heads have a sink, or
        the strongest head is above its null. One sink head beside an averse one has such a mean.
        """
        if _low(row, self.quantity) > _number_in(row, self.null) + self.margin:
            return True
        rate = _RATES.get(self.quantity)
        has_some = rate is not None and row.get(rate) is not None and _low(row, rate) > self.margin
        if self.quantity == ALPHA_1 and row.get(ALPHA_HEAD) is not None:
            has_some |= _low(row, ALPHA_HEAD) > _number_in(row, NULL_HEAD) + self.margin
        return None if has_some else False


@dataclass(frozen=True)
class HasNoSink(_OfModel):
    """At least four of five seeds have no sink: neither the mean over heads nor any head is one; see `HasSink`.

    It fails if at least four of five seeds have one in the mean over heads.
    """

    @property
    def claim(self) -> str:
        return f"no sink in {self.model}, neither in the mean over heads nor in one head"

    def verdict(self, runs: Table) -> Verdict:
        sink_in = HasSink(self.model).sink_in

        def lacks_sink(row: Mapping[str, Cell]) -> bool | None:
            has = sink_in(row)
            return None if has is None else not has

        verdict = _counted(self.claim, runs, self.model, lacks_sink, "seeds have none")
        absent = verdict.outcome in (Outcome.HOLDS, Outcome.UNDECIDED)
        return _unless_worse(verdict, runs, self.model, self.baseline) if absent else verdict


@dataclass(frozen=True)
class SinkOrNone(_OfModel):
    """Whether a model has a sink, by the rule `HasSink`, where no claim says that it should."""

    @property
    def claim(self) -> str:
        return f"is there a sink in {self.model}?"

    def verdict(self, runs: Table) -> Verdict:
        verdict = HasSink(self.model, baseline=self.baseline).verdict(runs)
        answers = {Outcome.HOLDS: Outcome.SINK, Outcome.FAILS: Outcome.NO_SINK}
        return Verdict(self.claim, answers.get(verdict.outcome, verdict.outcome), verdict.reason)


@dataclass(frozen=True)
class SinkAt:
    """In at least four of five seeds one of these positions, from 1, is the strongest, and above its null by 0.05."""

    model: str
    positions: Sequence[int]

    @property
    def models(self) -> tuple[str, ...]:
        return (self.model,)

    @property
    def claim(self) -> str:
        places = " or ".join(map(str, self.positions))
        return f"the strongest position of {self.model} is {places}, above its null by {MARGIN:g}"

    def verdict(self, runs: Table) -> Verdict:
        def is_there(row: Mapping[str, Cell]) -> bool:
            is_above = _number_in(row, ALPHA_THERE) > _number_in(row, NULL_THERE) + MARGIN
            return is_above and _number_in(row, STRONGEST) in self.positions

        return _counted(self.claim, runs, self.model, is_there, "seeds agree")


@dataclass(frozen=True)
class TrainingFails:
    """Training ends in a loss that is not finite, in at least four of five seeds."""

    model: str

    @property
    def models(self) -> tuple[str, ...]:
        return (self.model,)

    @property
    def claim(self) -> str:
        return f"the training of {self.model} fails"

    def verdict(self, runs: Table) -> Verdict:
        rows = _rows_of(runs, self.model)
        failed = sum(row.get(STATE, TRAINED) != TRAINED for row in rows)
        shown = in_most_seeds(failed, len(rows))
        return Verdict(self.claim, _OUTCOMES[shown], f"{failed} of {len(rows)} trainings failed")


_ABOVE = "seeds are above it"


def _counted(
    claim: str, runs: Table, model: str, shows: Callable[[Mapping[str, Cell]], bool | None], what: str
) -> Verdict:
    """The verdict of a model's seeds. `shows` says whether a run shows the claim, its opposite (False), or neither."""
    failed = _failures(runs, model)
    if failed:
        return Verdict(claim, Outcome.DIVERGED, failed)
    rows = _rows_of(runs, model)
    answers = [shows(row) for row in rows]
    yes, no, of = answers.count(True), answers.count(False), len(answers)
    shown = in_most_seeds(yes, of)
    if shown is False and in_most_seeds(no, of) is not True:
        shown = None
    return Verdict(claim, _OUTCOMES[shown], f"{yes} of {of} {what}{_between_in_words(rows, answers)}")


def _between_in_words(rows: Sequence[Mapping[str, Cell]], answers: Sequence[bool | None]) -> str:
    """How many seeds have a sink in some heads alone, and the rates of sinks."""
    between = [row for row, answer in zip(rows, answers, strict=True) if answer is None]
    if not between:
        return ""
    rates = [number(row[SINK_1]) for row in between if row.get(SINK_1) is not None]
    words = f": {SINK_1} {min(rates):.1%} to {max(rates):.1%}" if rates else ""
    return f"; {len(between)} more have a sink in some heads{words}"


def in_most_seeds(count: int, of: int) -> bool | None:
    """True where at least four of five seeds show it, False where at most one does, None in between or of few seeds."""
    if of < LEAST_SEEDS:
        return None
    return True if 5 * count >= 4 * of else False if 5 * count <= of else None


def _rows_of(runs: Table, model: str) -> list[Mapping[str, Cell]]:
    """The rows of a model. Raises InputError where there is none."""
    rows = [row for row in runs.rows if row[MODEL] == model]
    if not rows:
        names = ", ".join(dict.fromkeys(str(row[MODEL]) for row in runs.rows))
        raise InputError(f"no run is of {model!r}, so a rule would judge nothing; the runs are of {names or 'none'}")
    return rows


def _number_in(row: Mapping[str, Cell], column: str) -> float:
    """The number in a column. Raises InputError where there is none."""
    value = number(row.get(column))
    if math.isnan(value):
        where = ", ".join(str(row[name]) for name in (MODEL, SEED) if row.get(name) is not None)
        raise InputError(f"{where or 'a row'} has no number {column!r}, so a rule would judge nothing")
    return value


def _low(row: Mapping[str, Cell], column: str) -> float:
    """The lower end of a cell's interval; the cell itself where it has none."""
    return _number_in(row, low_of(column) if row.get(low_of(column)) is not None else column)


def _failures(runs: Table, *models: str) -> str:
    """The first failed training of these models in words; empty if all of them ended well."""
    return _failed([row for model in models for row in _rows_of(runs, model)])


def _failed(rows: Sequence[Mapping[str, Cell]]) -> str:
    """The first of these rows whose training failed, in words; empty if all of them ended well."""
    failed = [row for row in rows if row.get(STATE, TRAINED) != TRAINED]
    if not failed:
        return ""
    first = failed[0]
    return f"{len(failed)} trainings failed, such as {first.get(MODEL)}, seed {first.get(SEED)}: {first[STATE]}"


def _by_seed(runs: Table, model: str, quantity: str) -> dict[int, float]:
    """The quantity of every run of a model. Raises InputError where a seed comes twice."""
    rows = _rows_of(runs, model)
    values = {int(_number_in(row, SEED)): _number_in(row, quantity) for row in rows}
    if len(values) < len(rows):
        raise InputError(f"{model} has two rows of one seed, so a rule would judge one of them; give one row a seed")
    return values


def _differences(runs: Table, of: str, than: str, quantity: str) -> dict[int, float]:
    """How much higher the quantity is in one model than in another, by seed.

    Raises InputError where enough seeds can be compared, but not all of both models.
    """
    one, other = (_by_seed(runs, name, quantity) for name in (of, than))
    shared, most = sorted(one.keys() & other.keys()), max(len(one), len(other))
    if LEAST_SEEDS <= len(shared) < most:
        raise InputError(f"{of} and {than} share {len(shared)} seeds of {most}; train the others too")
    return {seed: one[seed] - other[seed] for seed in shared}


def _are_too_many(seeds: Sequence[int], of: int) -> bool:
    """Whether these seeds are more than one in five."""
    return 5 * len(seeds) > of


def _gaps_in_words(gaps: Mapping[int, float], unequal: Sequence[int]) -> str:
    """By how much losses differ in the seeds that are compared, and which seeds are not."""
    kept = [gap for seed, gap in gaps.items() if seed not in unequal]
    if not kept:
        return f"losses differ by {_range(gaps.values())} nats"
    words = f"losses differ by {_range(kept)} nats"
    others = ", ".join(f"{gaps[seed]:+.3f}" for seed in unequal)
    return f"{words}, beyond that in {len(unequal)} of {len(gaps)} seeds: {others}" if unequal else words


def _range(values: Collection[float]) -> str:
    return f"{min(values):+.3f} to {max(values):+.3f}" if values else "nan"


def _unless_worse(verdict: Verdict, runs: Table, model: str, baseline: str | None) -> Verdict:
    """The verdict, or confounded where the model's loss is above the baseline's in more than one of five seeds.

    Raises InputError where fewer than three seeds of the baseline can be compared, but more of the model.
    """
    if baseline is None:
        return verdict
    failed = _failures(runs, baseline)
    if failed:
        return Verdict(verdict.claim, Outcome.DIVERGED, failed)
    gaps = _differences(runs, model, baseline, LOSS)
    if len(gaps) < LEAST_SEEDS <= len(_rows_of(runs, model)):
        raise InputError(f"{len(gaps)} seeds of {model} can be compared with {baseline}, of at least {LEAST_SEEDS}")
    worse = [seed for seed, gap in gaps.items() if gap > LOSS_GAP]
    if len(gaps) < LEAST_SEEDS or not _are_too_many(worse, of=len(gaps)):
        return verdict
    reason = f"{verdict.reason}; beside {baseline}, {_gaps_in_words(gaps, worse)}"
    return Verdict(verdict.claim, Outcome.CONFOUNDED, reason)
