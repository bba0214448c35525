"""Figure 4 (middle and right): the sink comes after some steps of training, and later with a small learning rate."""

from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

import plotly.graph_objects as go

from sinkinterp.plots import training
from sinkinterp.plots.columns import MODEL, SEED
from sinkinterp.runs.arm import history_of, onset
from sinkinterp.runs.calculation import Calculation
from sinkinterp.runs.experiment import Scope
from sinkinterp.runs.row_rules import Asked
from sinkinterp.runs.scale import Scale
from sinkinterp.runs.seed_rules import in_most_seeds
from sinkinterp.runs.study import BASES
from sinkinterp.table import Cell, Table
from sinkinterp.train.recipe import Recipe

RATES = (1.0, 0.5, 0.25)
ALPHA = "alpha_1"  # as histories call it


def recipes(scope: Scope) -> list[Recipe]:
    """The base with every rate and seed."""
    base = BASES[scope.scale]
    return [replace(base, lr=base.lr * rate, seed=seed) for rate in RATES for seed in range(scope.seeds)]


def rows(scope: Scope) -> Table:
    """A row per rate, seed and evaluation during training."""
    base, runs = BASES[scope.scale], recipes(scope)
    on_run = scope.progress("training")
    histories: dict[int, list[dict[str, Any]]] = {}
    for i, history in scope.workers.results(partial(history_of, cache=scope.cache), runs):
        histories[i] = history
        on_run(len(histories), len(runs))
    columns = ("step", "valid_loss", ALPHA, "sink_1")
    made: list[dict[str, Cell]] = []
    for i, run in enumerate(runs):
        name = f"rate x {run.lr / base.lr:g}"
        made += [{MODEL: name, SEED: run.seed, **{column: row[column] for column in columns}} for row in histories[i]]
    note = f"{base.steps} steps of {base.batch} sequences, lr {base.lr:g} x rate, {scope.seeds} seeds, epsilon=0.3"
    return Table(
        "", f"{note}; alpha_1 and Sink_1 of up to 256 held-out sequences; uniform alpha_1: {_null():.3f}", tuple(made)
    )


def draw(table: Table) -> go.Figure:
    """Loss and sink rate over steps, a line per rate, of seed 0."""
    return training.training(Table("Training", f"seed 0; {table.note}", table.where(**{SEED: 0}).rows))


def _null() -> float:
    """alpha_1 under uniform attention over 16 positions: H_16 / 16."""
    return fmean(1 / k for k in range(1, 17))


def _onsets(table: Table, rate: float) -> list[int | None]:
    """The step of every seed from which alpha_1 stays above its null."""
    runs = table.where(**{MODEL: f"rate x {rate:g}"})
    seeds = dict.fromkeys(runs.column(SEED))
    return [onset([dict(row) for row in runs.where(**{SEED: seed}).rows], _null()) for seed in seeds]


def _comes_after_some_steps(table: Table) -> tuple[bool | None, str]:
    steps = _onsets(table, 1.0)
    comes = sum(step is not None and step > 0 for step in steps)
    return in_most_seeds(comes, len(steps)), f"steps of onset: {steps}"


def _comes_later(table: Table) -> tuple[bool | None, str]:
    last = max(table.numbers("step"))
    means = [fmean(last if step is None else step for step in _onsets(table, rate)) for rate in RATES]
    words = ", ".join(f"rate x {rate:g}: step {mean:.0f}" for rate, mean in zip(RATES, means, strict=True))
    return means == sorted(means) and means[0] < means[-1], f"{words} ({last:.0f} where it does not come)"


def _last_steps(table: Table) -> Table:
    return Table(table.title, f"at the last step; {table.note}", table.where(step=int(max(table.numbers("step")))).rows)


STUDY = Calculation(
    claim="The sink emerges after certain optimisation steps, and small learning rates delay it.",
    rows=rows,
    figure=draw,
    rules=(
        Asked("alpha_1 rises above its null after the first steps and stays there", _comes_after_some_steps),
        Asked("the smaller the learning rate, the later the sink comes", _comes_later),
    ),
    scales=(Scale.SMOKE, Scale.DEMO),
    recipes=recipes,
    shown=_last_steps,
)
