"""The demo: trains a sink model and its no-sink twins, measures them, and moves the sink by swapping p1."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ..applications.position_swap import swap_table
from ..backends.subject import Subject
from ..data.backcopy import BigramBackcopy
from ..data.progress import OnProgress, no_progress
from ..data.tokens import random_tokens, repeated_token
from ..files import data_of
from ..measurement.maps import head_maps
from ..measurement.measure import measure
from ..metrics.estimates import Estimate, estimate_cells, intervals
from ..report.maps import HeadMaps, attention_figure
from ..report.norms import residual_norms_by_block
from ..report.report import Report
from ..report.summary import sink_summary
from ..runs import trained
from ..runs.trained import EVALUATION_SEQUENCES, training_history
from ..runs.workers import Here, Processes, Workers, in_order
from ..table import Cell, Table
from ..train import checkpoint
from ..train.loop import held_out_tokens
from ..train.recipe import DEMO_EPSILON, DEMO_TWINS, Recipe, demo_recipe
from .page import Section, page

_WORDS = data_of("pages/templates/demo.toml")
TARGETS = (4, 6, 9, 12)  # positions, from 0, that p1 is replaced by or swapped with
SEQUENCES = 512  # held-out sequences that the models are measured on


@dataclass(frozen=True)
class Demo:
    """Everything that the demo measured."""

    reports: Mapping[str, Report]
    maps: Mapping[str, HeadMaps]
    twins: Table
    residuals: Table
    swaps: Table
    training: Table


def demo(
    seed: int = 0,
    cache: Path | None = None,
    workers: Workers = Processes(len(DEMO_TWINS)),
    on_training: OnProgress = no_progress,
    steps: int = Recipe.steps,
) -> Demo:
    """Trains or loads the three twins of one seed, measures them, and repeats Table 7 on the softmax model.

    `workers` train the twins that are not in the cache, and `on_training` is told how many of them are trained.
    """
    recipes = {variant: demo_recipe(variant, seed, steps) for variant in DEMO_TWINS}
    missing = [recipe for recipe in recipes.values() if checkpoint.latest(trained.run_of(recipe, cache)) < steps]
    in_order(workers if missing else Here(), partial(trained.trained, cache=cache), missing, on_training)
    runs = {variant: trained.trained(recipe, cache) for variant, recipe in recipes.items()}
    subjects = {variant: run.subject(variant) for variant, run in runs.items()}
    token_set = held_out_tokens(demo_recipe(DEMO_TWINS[0]).data, SEQUENCES)
    reports = {variant: measure(subject, token_set) for variant, subject in subjects.items()}
    losses = {variant: trained.valid_loss(subject, token_set) for variant, subject in subjects.items()}
    sizes = {"n": EVALUATION_SEQUENCES, "length": reports["softmax"].protocol.length, "epsilon": DEMO_EPSILON}
    histories = {variant: run.history().records() for variant, run in runs.items()}
    return Demo(
        reports=reports,
        maps={variant: head_maps(subject, token_set) for variant, subject in subjects.items()},
        twins=_twins_table(reports, losses),
        residuals=residual_norms_by_block(reports),
        swaps=swaps(subjects["softmax"], demo_recipe("softmax").data),
        training=training_history(histories, _WORDS["training"].format(**sizes)),
    )


def demo_page(result: Demo) -> str:
    """The page that `sinkinterp demo` writes."""
    words = _WORDS
    note = words["maps"].format(note=result.twins.note)
    figure = attention_figure(result.maps, "Mean attention maps of three twins", note)
    maps = Section("Where attention goes", figures=[figure])
    residuals = replace(Section.of(result.residuals), caption=words["residuals"])
    sections = [maps, Section.of(result.swaps), residuals, Section.of(result.training), Section.of(result.twins)]
    rates = {name: f"{report.sink_rate(0, DEMO_EPSILON).mean:.1%}" for name, report in result.reports.items()}
    return page(words["title"], words["lead"].format(**rates), sections)


def _twins_table(reports: Mapping[str, Report], losses: Mapping[str, Estimate]) -> Table:
    rows: list[dict[str, Cell]] = []
    for variant, report in reports.items():
        loss = estimate_cells("value", losses[variant])
        rows.append({"model": variant, "quantity": "validation loss (nats)", **loss, "null": None})
        rows += [{"model": variant, **row} for row in sink_summary(report, DEMO_EPSILON).records()]
    protocol = reports["softmax"].protocol
    note = f"{protocol.line()}, epsilon={DEMO_EPSILON}; {intervals(protocol.sequences)}"
    return Table.of("Three twins: who makes a sink?", note, tuple(rows))


def swaps(subject: Subject, task: BigramBackcopy) -> Table:
    """Table 7, measured on a model of this task."""
    sizes = task.vocab, task.length, SEQUENCES
    drawn = {"random": random_tokens(*sizes), "repeated": repeated_token(*sizes)}
    token_sets = {"natural": held_out_tokens(task, SEQUENCES), **drawn}
    return swap_table(subject, token_sets, TARGETS, DEMO_EPSILON)
