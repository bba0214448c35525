"""The demo: trains a sink model and its no-sink twins, measures them, and moves the sink by swapping p1."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..applications.position_swap import swap_table
from ..backends.subject import Subject
from ..data.backcopy import BigramBackcopy
from ..data.token_sources import random_tokens, repeated_token
from ..data.tokens import TokenSet
from ..measurement.maps import head_maps
from ..measurement.measure import measure
from ..metrics.bootstrap import BY_SEQUENCE, Estimate, estimate_cells
from ..plots.series import unique_values
from ..report.columns import BLOCK, MODEL
from ..report.maps import HeadMaps, attention_figure
from ..report.norms import FIRST_TOKEN, OTHER_TOKENS, residual_norms, residual_norms_by_block
from ..report.report import Report
from ..report.summary import sink_summary
from ..runs import trained
from ..runs.training_figures import training_history
from ..table import Cell, Table
from ..train.recipes import DEMO_EPSILON, DEMO_SEQUENCES, DEMO_STEPS, DEMO_TWINS, demo_recipe
from .page import Section, page

TARGETS = (4, 6, 9, 12)  # positions, from 0, that p1 is replaced by or swapped with
OnStep = Callable[[str, int, dict[str, Any]], None]


@dataclass(frozen=True)
class Result:
    """Everything that the demo measured."""

    reports: Mapping[str, Report]
    maps: Mapping[str, HeadMaps]
    twins: Table
    residuals: Table
    swaps: Table
    training: Table


def run(seed: int = 0, cache: Path | None = None, on_step: OnStep = lambda *_: None, steps: int = DEMO_STEPS) -> Result:
    """Trains or loads the three twins of one seed, measures them, and repeats Table 7 on the softmax model."""
    runs = {
        variant: trained.trained(demo_recipe(variant, seed, steps), cache, partial(on_step, variant))
        for variant in DEMO_TWINS
    }
    subjects = {variant: run.subject(variant) for variant, run in runs.items()}
    token_set = trained.held_out_tokens(demo_recipe(DEMO_TWINS[0]).data, DEMO_SEQUENCES)
    reports = {variant: measure(subject, token_set) for variant, subject in subjects.items()}
    losses = {variant: trained.valid_loss(subject, token_set) for variant, subject in subjects.items()}
    return Result(
        reports=reports,
        maps={variant: head_maps(subject, token_set) for variant, subject in subjects.items()},
        twins=_twins_table(reports, losses),
        residuals=residual_norms_by_block(reports),
        swaps=swaps(subjects["softmax"], demo_recipe("softmax").data),
        training=training_history(
            {variant: run.history() for variant, run in runs.items()},
            f"n={trained.EVALUATION_SEQUENCES} held-out sequences a reading, T={reports['softmax'].protocol.length}, "
            f"no BOS, fp32, epsilon={DEMO_EPSILON}",
        ),
    )


def demo_page(result: Result) -> str:
    """The page that `sinkinterp demo` writes."""
    note = (
        "Sigmoid: proxy scores, rows divided by their sum; * is the learned key k* of the K-bias model. The last query "
        f"predicts nothing, so its row is untrained. {result.twins.note}"
    )
    figures = {
        "Where attention goes": attention_figure(result.maps, "Mean attention maps of three twins", note),
        result.swaps.title: result.swaps.plot(),
        result.residuals.title: residual_norms(result.residuals),
        result.training.title: result.training.plot(),
    }
    says = {result.residuals.title: ending(result.residuals)}
    sections = [Section(title, says.get(title, ""), [figure]) for title, figure in figures.items()]
    sections.append(Section(result.twins.title, result.twins.note, tables=[result.twins]))
    lead = (
        "Three one-layer language models learn the same task to the same loss. Softmax attention parks what it does "
        "not need on the first position; sigmoid attention need not, and a learned key k* takes the sink over."
    )
    return page("First light: a sink, and two ways to be without it", lead, sections)


def ending(residuals: Table) -> str:
    """Why the other tokens of a model end longer than its first token, which is longer when attention reads it."""
    rows = {(row[MODEL], row[BLOCK]): row for row in residuals.rows}
    says = []
    for model in unique_values(residuals, MODEL):
        last = max(int(block or 0) for name, block in rows if name == model)
        begin, end = rows[model, 0], rows[model, last]
        first, others = ([float(row[kind] or 0) for row in (begin, end)] for kind in (FIRST_TOKEN, OTHER_TOKENS))
        if first[0] > others[0] and first[1] < others[1]:
            says.append(
                f"In {model} the first token is longer where attention reads it (block 0: {first[0]:.1f}, others "
                f"{others[0]:.1f}). The others end longer (block {last}: {others[1]:.1f}, the first {first[1]:.1f}), "
                "because the feed-forward layer writes its prediction of the next token there, and writes little to "
                "the first. The norm before the logits takes these lengths away."
            )
    return " ".join(says)


def _twins_table(reports: Mapping[str, Report], losses: Mapping[str, Estimate]) -> Table:
    rows: list[dict[str, Cell]] = []
    for variant, report in reports.items():
        loss = estimate_cells("value", losses[variant])
        rows.append({"model": variant, "quantity": "validation loss (nats)", **loss, "null": None})
        rows += [{"model": variant, **row} for row in sink_summary(report, DEMO_EPSILON).rows]
    return Table(
        "Three twins: who makes a sink?",
        f"{reports['softmax'].protocol.line()}, epsilon={DEMO_EPSILON}; {BY_SEQUENCE}",
        tuple(rows),
    )


def swaps(subject: Subject, task: BigramBackcopy) -> Table:
    """Table 7, measured on a model of this task."""
    return swap_table(subject, _token_sets(task), TARGETS, DEMO_EPSILON)


def _token_sets(task: BigramBackcopy) -> dict[str, TokenSet]:
    """The inputs of Table 7."""
    return {
        "natural": trained.held_out_tokens(task, DEMO_SEQUENCES),
        "random": random_tokens(task.vocab, task.length, DEMO_SEQUENCES),
        "repeated": repeated_token(task.vocab, task.length, DEMO_SEQUENCES),
    }
