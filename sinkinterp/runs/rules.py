"""Rules of verdicts: what the rows of an experiment say about a claim.

`experiments/shared/rules.py` has the rules that experiments are judged by.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from .. import table as col
from ..table import Cell, Table

TRAINED = "trained"  # the state of a run that ended well; any other text says why it did not


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


OUTCOMES = {True: Outcome.HOLDS, False: Outcome.FAILS, None: Outcome.UNDECIDED}  # by whether the claim is shown


@dataclass(frozen=True)
class Verdict:
    """A claim, what the runs say about it, and the numbers that decide."""

    claim: str
    outcome: Outcome
    reason: str


Decision = tuple[Outcome | bool | None, str]  # what rows say (True: the claim is shown, None: undecided), and why
Row = Mapping[str, Cell]


@dataclass(frozen=True)
class Rule:
    """A claim, and a function that decides about it by the rows of an experiment.

    models: the models whose rows it needs. trained: rows that must come from trainings that ended well.
    """

    claim: str
    decide: Callable[[Table], Decision]
    models: tuple[str, ...] = ()
    trained: Callable[[Table], Sequence[Row]] = lambda runs: ()

    def verdict(self, runs: Table) -> Verdict:
        """What these rows say about the claim."""
        failed = failed_in(self.trained(runs))
        shown, reason = (Outcome.DIVERGED, failed) if failed else self.decide(runs)
        return Verdict(self.claim, shown if isinstance(shown, Outcome) else OUTCOMES[shown], reason)


def standing(verdicts: Sequence[Verdict]) -> str:
    """How many rules hold, in words; empty where none says so, as in a list of models with a sink and without one."""
    judged = [verdict for verdict in verdicts if verdict.outcome is not Outcome.NOT_ASKED]
    hold = sum(verdict.outcome is Outcome.HOLDS for verdict in judged)
    if not judged or any(verdict.outcome in (Outcome.SINK, Outcome.NO_SINK) for verdict in judged):
        return ""
    if hold == len(judged):
        return "the rule holds" if hold == 1 else f"all {hold} rules hold"
    return f"{hold} of {len(judged)} rules hold"


def failed_in(rows: Sequence[Row]) -> str:
    """The first of these rows whose training failed, in words; empty if all of them ended well."""
    failed = [row for row in rows if row.get(col.STATE, TRAINED) != TRAINED]
    if not failed:
        return ""
    model, seed, state = (failed[0].get(name) for name in (col.MODEL, col.SEED, col.STATE))
    return f"{len(failed)} trainings failed, such as {model}, seed {seed}: {state}"
