"""Calculations: experiments whose rows a function of their own makes, such as identities that hold for every model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from ..table import Table
from .experiment import Scope, without_constant_names
from .finetune import Trainable
from .scale import Scale
from .verdict import Rule, Verdict


@dataclass(frozen=True)
class Calculation:
    """What a paper claims, a function that makes the rows, one that draws them, and the rules of the verdicts.

    recipes: the models that the rows are trained for, if any. shown: the rows in short, for people.
    """

    claim: str
    rows: Callable[[Scope], Table]
    figure: Callable[[Table], go.Figure]
    rules: Sequence[Rule]
    scales: Sequence[Scale] = (Scale.SMOKE, Scale.DEMO)
    recipes: Callable[[Scope], Sequence[Trainable]] = lambda scope: ()
    shown: Callable[[Table], Table] = without_constant_names

    def default_scale(self) -> Scale:
        return Scale.DEMO

    def recipes_at(self, scope: Scope) -> Sequence[Trainable]:
        return self.recipes(scope)

    def table(self, scope: Scope) -> Table:
        made = self.rows(scope)
        return Table(self.claim, made.note, made.rows)

    def digest(self, table: Table) -> Table:
        return self.shown(table)

    def draw(self, table: Table) -> go.Figure:
        return self.figure(table)

    def verdicts(self, table: Table) -> list[Verdict]:
        return [rule.verdict(table) for rule in self.rules]
