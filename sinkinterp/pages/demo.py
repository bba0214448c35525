"""First light: train a sink model and its no-sink twins, measure them, and move the sink by swapping p1."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from jaxtyping import Float
from torch import Tensor

from .. import tables
from ..backends.subject import Subject
from ..data.backcopy import BigramBackcopy
from ..data.token_sources import random_tokens, repeated_token
from ..data.tokens import TokenSet
from ..lm.variants import VARIANTS
from ..measurement.measure import attention_maps, measure
from ..measurement.position_swap import swap_table
from ..measurement.report import Report
from ..metrics.bootstrap import BY_SEQUENCE, Estimate, estimate_cells
from ..runs import trained
from ..table import Cell, Table
from ..train.recipe import Recipe

TWINS = ("softmax", "sigmoid", "k_bias")
EPSILON = 0.3
SEQUENCES = 512
TARGETS = (4, 6, 9, 12)  # positions from 0 that p1 is replaced by or swapped with
STEPS = 1500
OnStep = Callable[[str, int, dict[str, float]], None]


@dataclass(frozen=True)
class Result:
    """Everything that the demo measured."""

    reports: Mapping[str, Report]
    maps: Mapping[str, Float[Tensor, "query column"]]
    twins: Table
    residuals: Table
    swaps: Table
    training: Table


def recipe(variant: str, seed: int = 0, steps: int = STEPS) -> Recipe:
    """How the demo trains one of its twins."""
    return Recipe(model=VARIANTS[variant], seed=seed, steps=steps)


def run(
    seed: int = 0, cache: Path | None = None, on_step: OnStep = lambda *progress: None, steps: int = STEPS
) -> Result:
    """Trains or loads the three twins of one seed, measures them, and repeats Table 7 on the softmax model."""
    runs = {
        variant: trained.trained(recipe(variant, seed, steps), cache, partial(on_step, variant)) for variant in TWINS
    }
    subjects = {variant: run.subject(variant) for variant, run in runs.items()}
    token_set = trained.held_out_tokens(recipe(TWINS[0]).data, SEQUENCES)
    reports = {variant: measure(subject, token_set) for variant, subject in subjects.items()}
    losses = {variant: trained.valid_loss(subject, token_set) for variant, subject in subjects.items()}
    return Result(
        reports=reports,
        maps={variant: attention_maps(subject, token_set.tokens)[0, 0] for variant, subject in subjects.items()},
        twins=_twins_table(reports, losses),
        residuals=tables.residual_norms_by_block(reports),
        swaps=swaps(subjects["softmax"], recipe("softmax").data),
        training=_training_table(runs, reports["softmax"]),
    )


def _twins_table(reports: Mapping[str, Report], losses: Mapping[str, Estimate]) -> Table:
    rows: list[dict[str, Cell]] = []
    for variant, report in reports.items():
        loss = estimate_cells("value", losses[variant])
        rows.append({"model": variant, "quantity": "validation loss (nats)", **loss, "null": None})
        rows += [{"model": variant, **row} for row in tables.sink_summary(report, EPSILON).rows]
    return Table(
        "Three twins: who makes a sink?",
        f"{reports['softmax'].protocol.line()}, epsilon={EPSILON}; {BY_SEQUENCE}",
        tuple(rows),
    )


def swaps(subject: Subject, task: BigramBackcopy) -> Table:
    """Table 7 on a model of this task."""
    return swap_table(subject, _token_sets(task), TARGETS, EPSILON)


def _token_sets(task: BigramBackcopy) -> dict[str, TokenSet]:
    """The inputs of Table 7."""
    return {
        "natural": trained.held_out_tokens(task, SEQUENCES),
        "random": random_tokens(task.vocab, task.length, SEQUENCES),
        "repeated": repeated_token(task.vocab, task.length, SEQUENCES),
    }


def _training_table(runs: Mapping[str, trained.Run], report: Report) -> Table:
    columns = ("step", "valid_loss", "alpha_1", "sink_1", "sink_slot")
    rows = tuple(
        {"model": variant, **{name: row[name] for name in columns}}
        for variant, run in runs.items()
        for row in run.history()
    )
    text = (
        f"n={trained.EVALUATION_SEQUENCES} held-out sequences a reading, T={report.protocol.length}, no BOS, fp32, "
        f"epsilon={EPSILON}"
    )
    return Table("Losses and sinks over training", text, rows)
