"""Experiments that train arms, as a study does, and read more of each model than a row."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

from sinkinterp.data.tokens import TokenSet
from sinkinterp.files import cache_folder
from sinkinterp.plots.theme import unique_values
from sinkinterp.runs.experiment import Scope
from sinkinterp.runs.trained import SINK_LENGTH, Run, trained
from sinkinterp.runs.workers import in_order
from sinkinterp.table import MODEL, SEED, Cell, Table
from sinkinterp.train.loop import held_out_tokens, prepared
from sinkinterp.train.recipe import Recipe

from .study import HELD_OUT_SEQUENCES, Arm, base_of, device_of, history_of, lengths_of

Rows = Sequence[Mapping[str, Cell]]


@dataclass(frozen=True)
class OfRuns:
    """Makes the rows of an experiment: trains every arm with every seed, and reads each run with `read`.

    Workers train the models, and this process reads them. note: what a reader must know beside the protocol,
    where {n} becomes how many of `sequences` a scale reads, as `held_out` does.
    """

    arms: Callable[[Scope], Sequence[Arm]]
    read: Callable[[Run, Scope], Rows]
    note: str
    sequences: int = 0

    def __call__(self, scope: Scope) -> Table:
        """The rows of all runs, each after the name of its arm and its seed."""
        runs = self._runs(scope)
        train = partial(history_of, cache=scope.cache)
        in_order(scope.workers, train, [recipe for _, recipe in runs], scope.progress("training"))
        rows = (
            {MODEL: name, SEED: recipe.seed, **row}
            for name, recipe in runs
            for row in self.read(trained(recipe, scope.cache, device=device_of(recipe)), scope)
        )
        first, model = runs[0][1], runs[0][1].model
        size = f"{model.n_layers} layers x {model.n_heads} heads, d_model {model.d_model}"
        trainings = f"{first.steps} steps of {first.batch} sequences, lr {first.lr:g}, {scope.seeds} seeds"
        note = self.note.replace("{n}", str(_few(self.sequences, scope)))
        return Table.of("", f"scale {scope.scale}: {size}, {trainings}; {lengths_of(first)}; {note}", tuple(rows))

    def recipes(self, scope: Scope) -> list[Recipe]:
        """How every arm is trained with every seed."""
        return [recipe for _, recipe in self._runs(scope)]

    def _runs(self, scope: Scope) -> list[tuple[str, Recipe]]:
        base = base_of(scope)
        return [(arm.name, arm.recipe(base, seed)) for arm in self.arms(scope) for seed in range(scope.seeds)]


def _few(sequences: int, scope: Scope) -> int:
    return min(sequences, HELD_OUT_SEQUENCES.get(scope.scale, sequences))


def held_out(run: Run, scope: Scope, sequences: int) -> TokenSet:
    """Returns the first 64 positions of held-out sequences of a run's data; a study's scale caps their number."""
    drawn = held_out_tokens(prepared(run.recipe.data, scope.cache or cache_folder()), _few(sequences, scope))
    return replace(drawn, tokens=drawn.tokens[:, :SINK_LENGTH])


def means_by(table: Table, column: str, quantities: Sequence[str]) -> Table:
    """A row per value of a column: the mean over its rows of every quantity that all of them have."""
    rows: list[dict[str, Cell]] = []
    quantities = [quantity for quantity in quantities if quantity in table.frame]
    for name in unique_values(table, column):
        runs = table.where(**{column: name})
        means = {q: None if runs.frame[q].isna().any() else fmean(runs.frame[q]) for q in quantities}
        rows.append({column: name, **means})
    return Table.of(table.title, f"means over seeds; {table.note}", tuple(rows))
