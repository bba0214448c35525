"""Rules of verdicts: what the rows of an experiment say about a claim.

`above` and `within` compare cells by their intervals, in any table. `higher`, `alike`, `has_sink`, `has_no_sink`,
`sink_or_none`, `sink_at` and `training_fails` count seeds, in a table with a row per model and seed. These raise
InputError if a model has no row, a trained model lacks the number, or the baseline has fewer than three seeds.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from sinkinterp import table as col
from sinkinterp.checks import InputError
from sinkinterp.metrics.estimates import Estimate, difference, estimate
from sinkinterp.plots.theme import unique_values
from sinkinterp.runs.experiment import OUTCOMES, TRAINED, Decision, Outcome, Row, Rule, failed_in
from sinkinterp.table import NULL, REASON, Cell, Table, at_this_loss, high_of, low_of

MOST_REASONS = 3  # more are counted instead
LEAST_SEEDS = 3  # fewer decide nothing
LOSS_GAP = 0.02  # share of the baseline's loss; means that may differ by more are not compared at equal loss
MARGIN = 0.05  # by which a sink is above its null; also the share of sinks, of all sequences and heads, that counts
_RATES = {col.ALPHA_1: col.SINK_1, col.ALPHA_SLOT: col.SLOT_RATE}  # the share of sinks beside a mean


def number(cell: Cell) -> float:
    """The number in a cell, or NaN."""
    return float("nan") if cell is None else float(cell)


def above(
    claim: str,
    column: str,
    of: Row,
    than: Row,
    by: Sequence[str] = (col.MODEL, col.SEED),
    other_column: str | None = None,
    bound: Callable[[float], float] = lambda value: value,
) -> Rule:
    """A cell is above another: its interval begins above the end of the other's, which `bound` may move.

    `of` and `than` choose rows by their cells. Every pair of rows that agree in the columns `by` must show it. It fails
    if an interval ends before the other's begins. `other_column` is the column of the other cell, if that differs.
    """
    other = other_column or column

    def decide(runs: Table) -> Decision:
        highs, outcomes, reasons = [], [], []
        for high, low in ((high, low) for high in runs.where(**of).records() for low in runs.where(**than).records()):
            if any(high.get(name) != low.get(name) for name in by) or None in (high[column], low[other]):
                continue
            lower, value = Estimate(*map(bound, _interval(low, other))), Estimate(*_interval(high, column))
            outcomes.append(_beside(value.low > lower.high, value.high < lower.low))
            reasons.append(f"{value} against {lower}")
            highs.append(high)
        return _together(outcomes, _named(highs, reasons))

    return Rule(claim, decide, trained=lambda runs: [*runs.where(**of).records(), *runs.where(**than).records()])


def times(factor: float) -> Callable[[float], float]:
    """Multiplies a bound. Raises InputError for a factor that is not above 0, since it would turn an interval round."""
    if not factor > 0:
        raise InputError(f"a factor is above 0, since another would turn the interval round; got {factor}")
    return lambda value: factor * value


def plus(shift: float) -> Callable[[float], float]:
    """Adds to a bound."""
    return lambda value: value + shift


def within(claim: str, column: str, of: Row, low: float = -math.inf, high: float = math.inf) -> Rule:
    """Two bounds enclose the intervals of a cell. It fails if one of them is outside."""

    def decide(runs: Table) -> Decision:
        rows = [row for row in runs.where(**of).records() if row[column] is not None]
        values = [Estimate(*_interval(row, column)) for row in rows]
        outcomes = [
            _beside(low <= value.low and value.high <= high, value.low > high or value.high < low) for value in values
        ]
        return _together(outcomes, _named(rows, list(map(str, values))))

    return Rule(claim, decide, trained=lambda runs: runs.where(**of).records())


def of_each(rule: Rule) -> Rule:
    """A rule for every model by itself: it holds if it holds for all, and fails if it fails for one."""

    def decide(runs: Table) -> Decision:
        names = [str(name) for name in unique_values(runs, col.MODEL)]
        verdicts = {name: rule.verdict(runs.where(**{col.MODEL: name})) for name in names}
        if len(verdicts) == 1:
            (verdict,) = verdicts.values()
            return verdict.outcome, verdict.reason
        reasons = [f"{name}, {verdict.reason}" for name, verdict in verdicts.items()]
        return _together([verdict.outcome for verdict in verdicts.values()], reasons)

    return Rule(rule.claim, decide)


def checked(rule: Rule, column: str, of: Row, low: float = -math.inf, high: float = math.inf) -> Rule:
    """The rule where an edit did what its name says: the cell of the rows that `of` chooses is within these bounds.

    A model in which it did not is refused, and so is one whose rows lack the check; the reason names them first. The
    verdict is then refused, unless the rule fails in another model, whose edit was checked.
    """

    def decide(runs: Table) -> Decision:
        if column not in runs.frame:
            return Outcome.REFUSED, f"refused: not checked, since these rows have no {column}"
        refused = _refused(runs.where(**of).records(), column, low, high)
        if not refused:
            return rule.decide(runs)
        rest = runs.with_rows(row for row in runs.records() if str(row.get(col.MODEL)) not in refused)
        outcome, reason = rule.decide(rest) if len(rest.frame) else (Outcome.REFUSED, "")
        fails = outcome in (Outcome.FAILS, False)
        names = unique_values(rest, col.MODEL) if fails else []
        shown = f"fails: {names[0]}, {reason}" if len(names) == 1 else reason
        said = f"refused: {'; '.join(refused.values())}"
        return (Outcome.FAILS if fails else Outcome.REFUSED), "; ".join(filter(None, (said, shown)))

    return replace(rule, decide=decide)


def _refused(rows: Sequence[Row], column: str, low: float, high: float) -> dict[str, str]:
    """Why a model is refused, by its name: the check of an edit is outside the bounds, or its rows lack it.

    An empty row is of a model that lacks what is edited: there is nothing to check.
    """
    bounds = f"at least {low:g}" if high == math.inf else f"at most {high:g}"
    refused: dict[str, str] = {}
    for row in rows:
        name, value = str(row.get(col.MODEL)), number(row.get(column))
        if math.isnan(value) and not row.get(REASON):
            refused[name] = f"in {name} not checked, since its row has no {column}"
        elif value < low or value > high:
            refused[name] = f"in {name} {column} is {value:.4g}, not {bounds}"
    return refused


def changing(rule: Rule, column: str, of: Row, least: float = 1e-5) -> Rule:
    """The rule where an edit can change anything: models whose cell and its interval are below `least` are left out.

    Where all texts begin with the same token, the first entries of another text are those that are there.
    """

    def decide(runs: Table) -> Decision:
        idle = {row[col.MODEL] for row in runs.where(**of).records() if max(map(abs, _interval(row, column))) < least}
        rest = runs.with_rows(row for row in runs.records() if row[col.MODEL] not in idle)
        outcome, reason = rule.decide(rest) if len(rest.frame) else (Outcome.NOT_ASKED, "")
        left_out = [f"not asked: in {name} the edit changes nothing" for name in sorted(map(str, idle))]
        return outcome, "; ".join(filter(None, (reason, *left_out)))

    return replace(rule, decide=decide)


def setup(rule: Rule) -> Rule:
    """The rule as one that says that a comparison can be made, and is not counted among the claims."""
    return replace(rule, is_setup=True)


def not_asked(claim: str, why: str) -> Rule:
    """A claim that models of this scale cannot answer."""
    return Rule(claim, lambda runs: (Outcome.NOT_ASKED, why))


def _named(rows: Sequence[Row], reasons: Sequence[str]) -> list[str]:
    """The reasons of rows after the names of their models, if these differ."""
    names = [row.get(col.MODEL) for row in rows]
    return [f"{name}, {why}" if len(set(names)) > 1 else why for name, why in zip(names, reasons, strict=True)]


def _interval(row: Row, column: str) -> tuple[float, float, float]:
    """A cell and the ends of its interval; without an interval the cell itself is both ends."""
    value = _number_in(row, column)
    low, high = (row.get(end(column)) for end in (low_of, high_of))
    return value, value if low is None else number(low), value if high is None else number(high)


def _beside(shows: bool, shows_opposite: bool) -> Outcome:
    return Outcome.HOLDS if shows else Outcome.FAILS if shows_opposite else Outcome.UNDECIDED


def _together(outcomes: Sequence[Outcome], reasons: Sequence[str]) -> Decision:
    """One decision for several rows: it holds if it holds for all, and fails if it fails for one, which comes first."""
    if not outcomes:
        return Outcome.NOT_ASKED, "no row here can be asked"
    order = (Outcome.FAILS, Outcome.UNDECIDED, Outcome.HOLDS, Outcome.NOT_ASKED)
    outcome = next(outcome for outcome in order if outcome in outcomes)
    if len(reasons) <= MOST_REASONS:
        in_order = sorted(zip(outcomes, reasons, strict=True), key=lambda pair: order.index(pair[0]))
        differ = len(set(outcomes)) > 1
        return outcome, "; ".join(f"{each}: {why}" if differ else why for each, why in in_order)
    counts = ", ".join(f"{each} in {outcomes.count(each)}" for each in order if each in outcomes)
    example = reasons[outcomes.index(outcome)]
    return outcome, f"{counts} of {len(outcomes)} comparisons; for example {example}"


def higher(of: str, than: str, quantity: str = col.EXCESS, margin: float = 0.05, at_equal_loss: bool = True) -> Rule:
    """The quantity is higher in the models `of` than in the models `than`, seed by seed.

    By default the quantity is alpha_1 less its null, since models with a slot have a lower null. It holds if all seeds
    agree, the 95% interval of the mean difference is above zero, and the mean is at least `margin`. It fails if the
    interval is below zero and the mean is at least `margin` below. Three seeds without a difference agree in 12% of
    cases, so agreement alone decides nothing. It is confounded if the models with more of the quantity may have learned
    more: the interval of the difference of mean losses leaves 2% of the loss of `than` on that side. Rows may tell
    `of` at their loss (`at_this_loss`). Then that decides. With `at_equal_loss` False losses do not matter: for rows
    that the paper compares at unequal loss.
    """

    def judged(compared: Sequence[float]) -> tuple[Outcome, str]:
        mean = estimate(torch.tensor(compared)) if compared else Estimate(*[float("nan")] * 3)
        agree = sum(value > 0 for value in compared)
        is_above = agree == len(compared) and mean.low > 0 and mean.mean >= margin
        outcome = _beside(is_above, mean.high < 0 and mean.mean <= -margin)
        return outcome, f"mean difference {mean}, {agree} of {len(compared)} seeds agree"

    def decide(runs: Table) -> Decision:
        compared = [*_differences(runs, of, than, quantity).values()]
        outcome, reason = judged(compared)
        gap, most = _loss_gap(runs, of, than)
        reason = f"{reason}, losses differ by {gap} nats"
        if len(compared) < LEAST_SEEDS:
            return Outcome.UNDECIDED, reason
        learned_more = {Outcome.HOLDS: -gap.low, Outcome.FAILS: gap.high}.get(outcome, -math.inf)
        if not (at_equal_loss and learned_more > most):
            return outcome, reason
        rows, column = _rows_of(runs, than), at_this_loss(of)
        if outcome is Outcome.FAILS or quantity != col.EXCESS or any(row.get(column) is None for row in rows):
            return Outcome.CONFOUNDED, reason
        at_once = [number(row[column]) - _number_in(row, NULL) - _number_in(row, quantity) for row in rows]
        outcome, words = judged(at_once)
        return (outcome if outcome is Outcome.HOLDS else Outcome.CONFOUNDED), f"{reason}; at equal loss {words}"

    claim = f"{quantity} is higher in {of} than in {than}"
    return Rule(claim, decide, (of, than), lambda runs: _rows_of(runs, of) + _rows_of(runs, than))


def alike(of: str, than: str, quantity: str = col.ALPHA_1, most: float = MARGIN) -> Rule:
    """The quantity is equal in two models: the 95% interval of the difference of their means is within +-`most`.

    It fails if the interval is beyond. Seeds of two models are not pairs. Losses do not matter, since they may be what
    does not matter.
    """

    def decide(runs: Table) -> Decision:
        one, other = (torch.tensor([*_by_seed(runs, name, quantity).values()]) for name in (of, than))
        found = difference(other, one, paired=False)
        reason = f"mean difference {found}, {len(one)} and {len(other)} seeds"
        if min(len(one), len(other)) < LEAST_SEEDS:
            return Outcome.UNDECIDED, reason
        is_within = -most <= found.low and found.high <= most
        return _beside(is_within, found.low > most or found.high < -most), reason

    claim = f"{quantity} of {of} is that of {than}, up to {most:g}"
    return Rule(claim, decide, (of, than), lambda runs: _rows_of(runs, of) + _rows_of(runs, than))


def has_sink(
    model: str, quantity: str = col.ALPHA_1, null: str = NULL, margin: float = MARGIN, baseline: str | None = None
) -> Rule:
    """In at least four of five seeds the quantity is above its null by `margin`, with its whole interval.

    Without a margin, an alpha_1 of .217 would be a sink where uniform attention gives .211. By default the quantity is
    alpha_1, and the null is what position bias and mask alone would give the first token. It fails if at least four of
    five seeds have no sink at all; see `sink_in`. That is confounded if the mean loss may be 2% above that of
    `baseline`, by its 95% interval; a sink is confounded if the whole interval is.
    """
    claim = f"{quantity} is above its null by {margin:g} in {model}"
    shows = partial(sink_in, quantity=quantity, null=null, margin=margin)
    return _counted(claim, model, shows, "seeds are above it", Outcome.FAILS, baseline)


def sink_in(row: Row, quantity: str = col.ALPHA_1, null: str = NULL, margin: float = MARGIN) -> bool | None:
    """Tells if a run has a sink: True if its mean over heads is one, False if no head is, None in between.

    In between, the mean is not above its null, but more than `margin` of all sequences and heads have a sink, or
    the strongest head is above its null. One sink head beside an averse one has such a mean.
    """
    if _low(row, quantity) > _number_in(row, null) + margin:
        return True
    rate = _RATES.get(quantity)
    has_some = rate is not None and row.get(rate) is not None and _low(row, rate) > margin
    if quantity == col.ALPHA_1 and row.get(col.ALPHA_HEAD) is not None:
        has_some |= _low(row, col.ALPHA_HEAD) > _number_in(row, col.NULL_HEAD) + margin
    return None if has_some else False


def has_no_sink(model: str, baseline: str | None = None) -> Rule:
    """At least four of five seeds have no sink: neither the mean over heads nor any head is one; see `has_sink`.

    It fails if at least four of five seeds have one in the mean over heads.
    """

    def lacks_sink(row: Row) -> bool | None:
        has = sink_in(row)
        return None if has is None else not has

    claim = f"no sink in {model}, neither in the mean over heads nor in one head"
    return _counted(claim, model, lacks_sink, "seeds have none", Outcome.HOLDS, baseline)


def sink_or_none(model: str, baseline: str | None = None) -> Rule:
    """Tells if a model has a sink, by the rule `has_sink`, if no claim says that it should."""
    rule = has_sink(model, baseline=baseline)
    answers = {Outcome.HOLDS: Outcome.SINK, Outcome.FAILS: Outcome.NO_SINK}

    def decide(runs: Table) -> Decision:
        verdict = rule.verdict(runs)
        return answers.get(verdict.outcome, verdict.outcome), verdict.reason

    return Rule(f"is there a sink in {model}?", decide, rule.models)


def sink_at(model: str, positions: Sequence[int]) -> Rule:
    """In at least four of five seeds one of these positions, from 1, is the strongest, and above its null by 0.05."""

    def is_there(row: Row) -> bool:
        is_above = _number_in(row, col.ALPHA_THERE) > _number_in(row, col.NULL_THERE) + MARGIN
        return is_above and _number_in(row, col.STRONGEST) in positions

    places = " or ".join(map(str, positions))
    claim = f"the strongest position of {model} is {places}, above its null by {MARGIN:g}"
    return _counted(claim, model, is_there, "seeds agree")


def training_fails(model: str) -> Rule:
    """Training ends in a loss that is not finite, in at least four of five seeds."""

    def decide(runs: Table) -> Decision:
        rows = _rows_of(runs, model)
        failed = sum(row.get(col.STATE, TRAINED) != TRAINED for row in rows)
        return in_most_seeds(failed, len(rows)), f"{failed} of {len(rows)} trainings failed"

    return Rule(f"the training of {model} fails", decide, (model,))


def _counted(
    claim: str,
    model: str,
    shows: Callable[[Row], bool | None],
    what: str,
    absence: Outcome | None = None,
    baseline: str | None = None,
) -> Rule:
    """The rule that counts a model's seeds.

    shows: whether a run shows the claim (True), its opposite (False), or neither.
    absence: the outcome that denies a sink. It is confounded if the model may have learned less than
        `baseline`, and a sink is confounded if the model learned less for certain.
    """

    def decide(runs: Table) -> Decision:
        rows = _rows_of(runs, model)
        answers = [shows(row) for row in rows]
        yes, no, of = answers.count(True), answers.count(False), len(answers)
        shown = in_most_seeds(yes, of)
        if shown is False and in_most_seeds(no, of) is not True:
            shown = None
        outcome, reason = OUTCOMES[shown], f"{yes} of {of} {what}{_between_in_words(rows, answers)}"
        if baseline is None or outcome is Outcome.UNDECIDED:
            return outcome, reason
        return _unless_worse(outcome, reason, runs, model, baseline, for_certain=outcome is not absence)

    models = (model,) if baseline is None else (model, baseline)
    return Rule(claim, decide, models, lambda runs: _rows_of(runs, model))


def _between_in_words(rows: Sequence[Row], answers: Sequence[bool | None]) -> str:
    """How many seeds have a sink in some heads alone, with Sink_1 and alpha_1 of the strongest head over its null."""
    between = [row for row, answer in zip(rows, answers, strict=True) if answer is None]
    if not between:
        return ""
    rates = sorted(number(row[col.SINK_1]) for row in between if row.get(col.SINK_1) is not None)
    judged = [row for row in between if row.get(col.ALPHA_HEAD) is not None and row.get(col.NULL_HEAD) is not None]
    heads = sorted(number(row[col.ALPHA_HEAD]) - number(row[col.NULL_HEAD]) for row in judged)
    words = [
        f"{what} {' to '.join(dict.fromkeys(format(x, form) for x in (found[0], found[-1])))}"
        for what, found, form in ((col.SINK_1, rates, ".1%"), ("strongest head over its null", heads, ".3f"))
        if found
    ]
    verb, said = "has" if len(between) == 1 else "have", f": {', '.join(words)}" if words else ""
    return f"; {len(between)} more {verb} a sink in some heads{said}"


def in_most_seeds(count: int, of: int) -> bool | None:
    """True where at least four of five seeds show it, False where at most one does, None in between or of few seeds."""
    if of < LEAST_SEEDS:
        return None
    return True if 5 * count >= 4 * of else False if 5 * count <= of else None


def _rows_of(runs: Table, model: str) -> list[Row]:
    """The rows of a model. Raises InputError where there is none."""
    rows: list[Row] = [*runs.where(**{col.MODEL: model}).records()]
    if not rows:
        names = ", ".join(map(str, unique_values(runs, col.MODEL)))
        raise InputError(f"no run is of {model!r}, so a rule would judge nothing; the runs are of {names or 'none'}")
    return rows


def _number_in(row: Row, column: str) -> float:
    """The number in a column. Raises InputError where there is none."""
    value = number(row.get(column))
    if math.isnan(value):
        where = ", ".join(str(row[name]) for name in (col.MODEL, col.SEED) if row.get(name) is not None)
        raise InputError(f"{where or 'a row'} has no number {column!r}, so a rule would judge nothing")
    return value


def _low(row: Row, column: str) -> float:
    """The lower end of a cell's interval; the cell itself where it has none."""
    return _number_in(row, low_of(column) if row.get(low_of(column)) is not None else column)


def _by_seed(runs: Table, model: str, quantity: str) -> dict[int, float]:
    """The quantity of every run of a model. Raises InputError where a seed comes twice."""
    rows = _rows_of(runs, model)
    values = {int(_number_in(row, col.SEED)): _number_in(row, quantity) for row in rows}
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


def _loss_gap(runs: Table, of: str, than: str) -> tuple[Estimate, float]:
    """By how much the mean loss of a model is above another's, in nats, and the most that counts as equal."""
    one, other = (torch.tensor([*_by_seed(runs, name, col.LOSS).values()]) for name in (of, than))
    return difference(other, one, paired=False), LOSS_GAP * other.mean().item()


def _unless_worse(outcome: Outcome, reason: str, runs: Table, model: str, baseline: str, for_certain: bool) -> Decision:
    """The outcome, or confounded if the model's mean loss may be 2% above the baseline's, or is so for certain.

    If the baseline had its sink already at that loss, the loss does not explain the difference. Raises
    InputError if fewer than three seeds of the baseline can be compared, but more of the model.
    """
    if failed := failed_in(_rows_of(runs, baseline)):
        return Outcome.DIVERGED, failed
    seeds = len(_differences(runs, model, baseline, col.LOSS))
    if seeds < LEAST_SEEDS <= len(_rows_of(runs, model)):
        raise InputError(
            f"{seeds} seeds of {model} can be compared with {baseline}, of at least {LEAST_SEEDS}; train the others too"
        )
    gap, most = _loss_gap(runs, model, baseline)
    if seeds < LEAST_SEEDS or (gap.low if for_certain else gap.high) <= most:
        return outcome, reason
    reason = f"{reason}; the loss is {gap} nats above that of {baseline}"
    rows, column = _rows_of(runs, model), at_this_loss(baseline)
    if for_certain or any(row.get(column) is None for row in rows):
        return Outcome.CONFOUNDED, reason
    alphas = [_number_in(row, column) for row in rows]
    has_sink_there = sum(alpha > _number_in(row, NULL) + MARGIN for alpha, row in zip(alphas, rows, strict=True))
    explains = not in_most_seeds(has_sink_there, len(rows))
    words = f"at that loss alpha_1 of {baseline} is {min(alphas):.3f} to {max(alphas):.3f}"
    return Outcome.CONFOUNDED if explains else outcome, f"{reason}; {words}"
