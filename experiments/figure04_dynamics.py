"""Figure 4 (middle and right): the sink comes after some steps of training, and later with a small learning rate."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean

import numpy as np
import plotly.graph_objects as go

from sinkinterp.data.choices import Scale
from sinkinterp.runs.experiment import Experiment, Rule, Scope
from sinkinterp.runs.trained import SINK_LENGTH, training
from sinkinterp.runs.workers import in_order
from sinkinterp.table import MODEL, NULL, SEED, Cell, Table
from sinkinterp.train.recipe import Recipe

from .shared.figures import by_seed, last_steps
from .shared.rules import in_most_seeds, number
from .shared.study import base_of, history_of, lengths_of, onset

RATES = (1.0, 0.5, 0.25)
ALPHA = "alpha_1"  # as histories call it
GRID = 50  # steps between two evaluations, at most: a sink of text comes within some hundreds
REORDERINGS, CHANCE = 10_000, 0.025  # by chance a rank test says "later" as rarely as a 95% interval lies above zero


def recipes(scope: Scope) -> list[Recipe]:
    """The base with every rate and seed."""
    base = base_of(scope)
    base = replace(base, watch_every=min(base.watch_every, GRID))
    return [replace(base, lr=base.lr * rate, seed=seed) for rate in RATES for seed in range(scope.seeds)]


def rows(scope: Scope) -> Table:
    """A row per rate, seed and evaluation during training."""
    base, runs = base_of(scope), recipes(scope)
    histories = in_order(scope.workers, partial(history_of, cache=scope.cache), runs, scope.progress("training"))
    columns = ("step", "valid_loss", ALPHA, "sink_1")
    length = min(base.data.length, SINK_LENGTH)
    null = fmean(1 / k for k in range(1, length + 1))  # uniform attention gives the first token H_T / T
    made: list[dict[str, Cell]] = []
    for run, history in zip(runs, histories, strict=True):
        name = f"rate x {run.lr / base.lr:g}"
        of_run: dict[str, Cell] = {MODEL: name, SEED: run.seed, NULL: null}
        made += [of_run | {column: row[column] for column in columns} for row in history]
    note = (
        f"scale {scope.scale}: {base.steps} steps of {base.batch} sequences, lr {base.lr:g} x rate, {scope.seeds} "
        f"seeds; alpha_1 and Sink_1 of up to 256 held-out sequences, {lengths_of(base)}, fp32, epsilon=0.3; null: "
        "uniform attention"
    )
    return Table.of("", note, tuple(made))


def draw(table: Table) -> go.Figure:
    """Loss and sink rate over steps, a line per rate."""
    return training(Table("Training", table.note, table.frame))


def _onsets(table: Table, rate: float) -> list[int | None]:
    """The step of every seed from which alpha_1 stays above its null."""
    runs = by_seed(table, f"rate x {rate:g}")
    return [onset([dict(row) for row in run.records()], number(run.records()[0][NULL])) for run in runs]


def _comes_after_some_steps(table: Table) -> tuple[bool | None, str]:
    steps = _onsets(table, 1.0)
    comes = sum(step is not None and step > 0 for step in steps)
    return in_most_seeds(comes, len(steps)), f"steps of onset: {steps}"


def _comes_later(table: Table) -> tuple[bool | None, str]:
    """Whether seeds of smaller rates come later, by ranks; undecided if half of the seeds of a rate never have it."""
    onsets = [_onsets(table, rate) for rate in RATES]
    words = "; ".join(
        f"rate x {rate:g}: {', '.join('never' if step is None else f'step {step}' for step in steps)}"
        for rate, steps in zip(RATES, onsets, strict=True)
    )
    last = max(table.numbers("step"))
    if any(2 * steps.count(None) >= len(steps) for steps in onsets):
        return None, f"{words}; never in {last:.0f} steps is not late"
    later, earlier = _by_chance([[2 * last if step is None else step for step in steps] for steps in onsets])
    shows = True if later <= CHANCE else False if earlier <= CHANCE else None
    return shows, f"{words}; by chance as late in {later:.1%} of reorderings"


def _by_chance(onsets: Sequence[Sequence[float]]) -> tuple[float, float]:
    """How often random reorderings of the steps rise from group to group as much, and as little (Jonckheere 1954)."""
    steps = np.concatenate([np.asarray(of_rate, float) for of_rate in onsets])
    group = np.repeat(np.arange(len(onsets)), [len(of_rate) for of_rate in onsets])
    order = np.random.default_rng(0).permuted(np.tile(np.arange(len(steps)), (REORDERINGS, 1)), axis=1)
    is_later_group = np.sign(group[None, :] - group[:, None]).clip(0)
    pairs = np.sign(steps[None, :] - steps[:, None])
    trend = (pairs * is_later_group).sum()
    by_chance = (pairs[order[:, :, None], order[:, None, :]] * is_later_group).sum((1, 2))
    return float((by_chance >= trend).mean()), float((by_chance <= trend).mean())


EXPERIMENT = Experiment(
    claim="The sink emerges after certain optimisation steps, and small learning rates delay it.",
    rows=rows,
    draw=draw,
    rules=(
        Rule("alpha_1 rises above its null after the first steps and stays there", _comes_after_some_steps),
        Rule("the smaller the learning rate, the later the sink comes", _comes_later),
    ),
    scales=(Scale.SMOKE, Scale.DEMO, Scale.TEXT),
    recipes=recipes,
    digest=last_steps,
)
