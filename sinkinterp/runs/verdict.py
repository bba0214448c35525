"""Verdicts: what runs say about a claim, by rules."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

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


def number(cell: Cell) -> float:
    """The number in a cell; NaN where there is none."""
    return float("nan") if cell is None else float(cell)
