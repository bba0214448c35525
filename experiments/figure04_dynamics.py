"""Figure 4 (middle and right): the sink comes after some steps of training, and later with a small learning rate."""

import math
from dataclasses import replace
from functools import partial
from statistics import fmean, median

import plotly.graph_objects as go

from sinkinterp.report.columns import MODEL, SEED
from sinkinterp.runs.catalogue import Scale
from sinkinterp.runs.experiment import Experiment, Scope
from sinkinterp.runs.histories import training
from sinkinterp.runs.rules import FunctionRule, in_most_seeds
from sinkinterp.runs.study import BASES, history_of, onset
from sinkinterp.runs.workers import in_order
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
    histories = in_order(scope.workers, partial(history_of, cache=scope.cache), runs, scope.progress("training"))
    columns = ("step", "valid_loss", ALPHA, "sink_1")
    made: list[dict[str, Cell]] = []
    for run, history in zip(runs, histories, strict=True):
        name = f"rate x {run.lr / base.lr:g}"
        made += [{MODEL: name, SEED: run.seed, **{column: row[column] for column in columns}} for row in history]
    note = f"{base.steps} steps of {base.batch} sequences, lr {base.lr:g} x rate, {scope.seeds} seeds, epsilon=0.3"
    return Table(
        "", f"{note}; alpha_1 and Sink_1 of up to 256 held-out sequences; uniform alpha_1: {_null():.3f}", tuple(made)
    )


def draw(table: Table) -> go.Figure:
    """Loss and sink rate over steps, a line per rate, of seed 0."""
    return training(Table("Training", f"seed 0; {table.note}", table.where(**{SEED: 0}).rows))


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
    """Whether the median step is later at smaller rates; undecided where half of the seeds of a rate never have it."""
    medians = [median(math.inf if step is None else step for step in _onsets(table, rate)) for rate in RATES]
    words = ", ".join(f"rate x {rate:g}: {_in_words(step)}" for rate, step in zip(RATES, medians, strict=True))
    if math.inf in medians:
        return None, f"{words} in {max(table.numbers('step')):.0f} steps; never is not late"
    return medians == sorted(set(medians)), f"{words}; median over seeds"


def _in_words(step: float) -> str:
    return "never" if step == math.inf else f"step {step:g}"


def _last_steps(table: Table) -> Table:
    return Table(table.title, f"at the last step; {table.note}", table.where(step=int(max(table.numbers("step")))).rows)


EXPERIMENT = Experiment(
    claim="The sink emerges after certain optimisation steps, and small learning rates delay it.",
    rows=rows,
    draw=draw,
    rules=(
        FunctionRule("alpha_1 rises above its null after the first steps and stays there", _comes_after_some_steps),
        FunctionRule("the smaller the learning rate, the later the sink comes", _comes_later),
    ),
    scales=(Scale.SMOKE, Scale.DEMO, Scale.TEXT),
    recipes=recipes,
    digest=_last_steps,
)
