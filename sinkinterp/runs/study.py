"""Studies: experiments that train models of ours, a row per arm and seed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean

import plotly.graph_objects as go

from ..plots import arms
from ..plots.columns import (
    ALPHA_1,
    ALPHA_SLOT,
    LOSS,
    MODEL,
    NULL,
    ONSET,
    SEED,
    SINK_1,
    SLOT_RATE,
    STATE,
    STRONGEST,
    published,
)
from ..table import Cell, Table
from ..train.recipe import Recipe
from ..train.recipes import RECIPES, demo_recipe, with_variant
from .arm import EPSILON, Arm, measured
from .experiment import Scope
from .scale import Scale
from .trained import SINK_LENGTH
from .verdict import TRAINED, Rule, Verdict

SHOWN = (LOSS, SINK_1, ALPHA_1, NULL, SLOT_RATE, ALPHA_SLOT, ONSET)
RANGE = "its range"
PUBLISHED = (SINK_1, SLOT_RATE, LOSS)  # the quantities of the paper's tables

_TOY = replace(  # a sink of middle strength, so that it can become stronger and weaker: experiments/LOG.md
    demo_recipe("softmax", steps=800), batch=64, watch_every=50, save_every=400
)
BASES: Mapping[Scale, Recipe] = {
    Scale.SMOKE: replace(with_variant(_TOY, "heads_2"), steps=2, batch=8, watch_every=2),
    Scale.DEMO: with_variant(_TOY, "heads_2"),
    Scale.TEXT: replace(RECIPES["text"], steps=48_000),
    Scale.PAPER: RECIPES["paper-60m"],
}
HELD_OUT_SEQUENCES = {Scale.SMOKE: 16, Scale.TEXT: 256}  # the text that every installation holds has 300


@dataclass(frozen=True)
class Study:
    """An experiment whose models are trained: what the paper claims, the models, and the rules of the verdicts.

    arms: the models as changes of the base recipe of the scale, the first of them the baseline.
    rules: what decides about the claim.
    scales: those at which the study is run.
    note: what a reader must know beside the protocol.
    """

    claim: str
    arms: Sequence[Arm]
    rules: Sequence[Rule]
    scales: Sequence[Scale] = (Scale.SMOKE, Scale.DEMO, Scale.PAPER)
    note: str = ""
    bases: Mapping[Scale, Recipe] = field(default_factory=lambda: BASES)

    def default_scale(self) -> Scale:
        """Toys that train in seconds, where the study has them."""
        return Scale.DEMO if Scale.DEMO in self.scales else Scale.TEXT

    def recipes_at(self, scope: Scope) -> list[Recipe]:
        return [recipe for _, recipe in self._runs(scope)]

    def table(self, scope: Scope) -> Table:
        """A row per arm and seed. Runs in the cache are not repeated; others are made by the workers of the scope."""
        runs, sequences = self._runs(scope), _sequences(scope.scale)
        measure = partial(measured, sequences=sequences, cache=scope.cache)
        on_run = scope.progress("training")
        rows: dict[int, dict[str, Cell]] = {}
        on_run(0, len(runs))
        for i, numbers in scope.workers.results(measure, [recipe for _, recipe in runs]):
            arm, recipe = runs[i]
            rows[i] = {MODEL: arm.name, SEED: recipe.seed, **numbers, **self._published(arm)}
            on_run(len(rows), len(runs))
        return Table(self.claim, self._note(scope), tuple(rows[i] for i in sorted(rows)))

    def digest(self, table: Table) -> Table:
        """A row per arm: how many trainings ended well, and the mean over seeds of every quantity."""
        names = dict.fromkeys(map(str, table.column(MODEL)))
        rows = [_in_short(name, table.where(**{MODEL: name})) for name in names]
        note = f"mean over seeds; {RANGE}: over seeds; strongest: position, from 1; {table.note}"
        return Table(table.title, note, _without_empty_columns(rows))

    def draw(self, table: Table) -> go.Figure:
        """Sinks and losses of every arm: a mark per seed, the mean, the null, and the paper's value where known."""
        return arms.by_model(table)

    def verdicts(self, table: Table) -> list[Verdict]:
        """What the runs say about the claim, rule by rule."""
        return [rule.verdict(table) for rule in self.rules]

    def _runs(self, scope: Scope) -> list[tuple[Arm, Recipe]]:
        """Every arm with every seed, and how it is trained; whole sets of arms come first."""
        base = self.bases[scope.scale]
        return [(arm, arm.recipe(base, seed)) for seed in range(scope.seeds) for arm in self.arms]

    def _published(self, arm: Arm) -> dict[str, Cell]:
        shown = [name for name in PUBLISHED if any(name in other.reported for other in self.arms)]
        return {published(name): arm.reported.get(name) for name in shown}

    def _note(self, scope: Scope) -> str:
        base = self.bases[scope.scale]
        size = f"{base.model.n_layers} layers x {base.model.n_heads} heads, d_model {base.model.d_model}"
        protocol = (
            f"scale {scope.scale}: {size}, {base.steps} steps of {base.batch} sequences, lr {base.lr:g}, weight decay "
            f"{base.weight_decay:g}, {scope.seeds} seeds; n={_sequences(scope.scale)} held-out sequences, "
            f"T={min(base.data.length, SINK_LENGTH)}, fp32, epsilon={EPSILON}; null: bias and mask alone; intervals of "
            "rows: over sequences"
        )
        return f"{protocol}; {self.note}" if self.note else protocol


def _sequences(scale: Scale) -> int:
    """Held-out sequences that every run is measured on."""
    return HELD_OUT_SEQUENCES.get(scale, 512)


def _in_short(name: str, runs: Table) -> dict[str, Cell]:
    failed = sum(state != TRAINED for state in runs.column(STATE))
    row: dict[str, Cell] = {MODEL: name, "trained": f"{len(runs.rows) - failed} of {len(runs.rows)}"}
    for quantity in SHOWN:
        values = [value for value in runs.numbers(quantity) if math.isfinite(value)]
        row[quantity] = fmean(values) if values else None
        if quantity == ALPHA_1:
            row[RANGE] = f"{min(values):.2f} to {max(values):.2f}" if values else ""
    places = [str(place) for place in runs.column(STRONGEST) if place is not None]
    row["strongest"] = ", ".join(dict.fromkeys(places))
    return row | {column: runs.rows[0][column] for column in map(published, PUBLISHED) if column in runs.columns}


def _without_empty_columns(rows: Sequence[Mapping[str, Cell]]) -> tuple[Mapping[str, Cell], ...]:
    kept = [name for name in rows[0] if any(row[name] not in (None, "") for row in rows)]
    return tuple({name: row[name] for name in kept} for row in rows)
