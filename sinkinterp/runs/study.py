"""Studies: experiments that train models of ours, a row per arm and seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import plotly.graph_objects as go

from ..data.progress import Progress, silent
from ..plots import arms
from ..plots.columns import LOSS, MODEL, SEED, SINK_1, SLOT_RATE, published
from ..table import Cell, Table
from ..train.recipe import Recipe
from ..train.recipes import RECIPES, demo_recipe, with_variant
from .arm import EPSILON, Arm, measured
from .scale import Scale
from .verdict import Rule, Verdict
from .workers import Processes, Workers

SEQUENCES = 512  # held-out sequences that every run is measured on
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


@dataclass(frozen=True)
class Study:
    """An experiment whose models are trained: what the paper claims, the models, and the rules of the verdicts.

    arms: the models as changes of the base recipe of the scale, the first of them the baseline.
    rules: what decides, stated before the runs.
    scales: those at which the study is run.
    seeds: how many seeds each scale has.
    note: what a reader must know beside the protocol.
    """

    claim: str
    arms: Sequence[Arm]
    rules: Sequence[Rule]
    scales: Sequence[Scale] = (Scale.SMOKE, Scale.DEMO, Scale.PAPER)
    note: str = ""
    bases: Mapping[Scale, Recipe] = field(default_factory=lambda: BASES)

    def recipes(self, scale: Scale, seeds: int) -> list[tuple[Arm, Recipe]]:
        """How every arm is trained with every seed."""
        base = self.bases[scale]
        return [(arm, arm.recipe(base, seed)) for seed in range(seeds) for arm in self.arms]

    def table(
        self,
        scale: Scale,
        seeds: int,
        workers: Workers = Processes(),
        progress: Progress = silent,
        cache: Path | None = None,
    ) -> Table:
        """A row per arm and seed. Runs in the cache are not repeated."""
        runs = self.recipes(scale, seeds)
        on_run = progress("training")
        sequences = 16 if scale is Scale.SMOKE else SEQUENCES
        rows: dict[int, dict[str, Cell]] = {}
        on_run(0, len(runs))
        for i, row in workers.results(partial(measured, sequences=sequences, cache=cache), [r for _, r in runs]):
            arm, recipe = runs[i]
            rows[i] = {MODEL: arm.name, SEED: recipe.seed} | row | self._published(arm)
            on_run(len(rows), len(runs))
        return Table(self.claim, self._note(scale, seeds, sequences), tuple(rows[i] for i in sorted(rows)))

    def draw(self, table: Table) -> go.Figure:
        """Sinks and losses of every arm: a mark per seed, the mean, the null, and the paper's value where known."""
        return arms.by_model(table)

    def verdicts(self, table: Table) -> list[Verdict]:
        """What the runs say about the claim, rule by rule."""
        return [rule.verdict(table) for rule in self.rules]

    def _published(self, arm: Arm) -> dict[str, Cell]:
        shown = [name for name in PUBLISHED if any(name in other.reported for other in self.arms)]
        return {published(name): arm.reported.get(name) for name in shown}

    def _note(self, scale: Scale, seeds: int, sequences: int) -> str:
        base = self.bases[scale]
        size = f"{base.model.n_layers} layers x {base.model.n_heads} heads, d_model {base.model.d_model}"
        length = min(base.data.length, 64)
        protocol = (
            f"scale {scale}: {size}, {base.steps} steps of {base.batch} sequences, lr {base.lr:g}, weight decay "
            f"{base.weight_decay:g}; {seeds} seeds; n={sequences} held-out sequences, T={length}, fp32, "
            f"epsilon={EPSILON}; null: bias and mask alone; intervals in rows: over sequences"
        )
        return f"{protocol}; {self.note}" if self.note else protocol
