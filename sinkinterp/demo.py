"""First light: train a sink model and its no-sink twins, measure them, and move the sink by swapping p1."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from jaxtyping import Float
from torch import Tensor

from . import study, tabulate
from .adapters.subject import Subject
from .data.backcopy import BigramBackcopy
from .data.probes import Probe, random_tokens, repeated_token
from .interventions.edit import Edit
from .interventions.positions import ReplacePosition, SwapPositions
from .lm.variants import VARIANTS
from .measurement import attention_maps, measure
from .metrics.intervals import Estimate
from .report import Report
from .table import Cell, Table
from .train.recipe import Recipe

TWINS = ("softmax", "sigmoid", "k_bias")
EPSILON = 0.3
SEQUENCES = 512
TARGETS = (4, 6, 9, 12)  # positions from 0 that p1 is replaced by or swapped with
STEPS = 1500
PAPER: Mapping[str, Mapping[int, tuple[float, float | None]]] = {
    # Gu et al. 2025, Table 7: GPT2-XL, repeated tokens, T=64, epsilon=0.3; edit -> t -> (Sink_1, Sink_t)
    "none": {5: (0.6228, None)},
    "p1 <- p_t": {5: (0.0020, 0.0), 10: (0.0236, 0.0)},
    "p1 <-> p_t": {5: (0.0144, 0.5763), 10: (0.0373, 0.5448)},
}
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
    runs = {variant: study.trained(recipe(variant, seed, steps), cache, partial(on_step, variant)) for variant in TWINS}
    subjects = {variant: run.subject(variant) for variant, run in runs.items()}
    probe = study.held_out_probe(recipe(TWINS[0]).data, SEQUENCES)
    reports = {variant: measure(subject, probe) for variant, subject in subjects.items()}
    losses = {variant: study.valid_loss(subject, probe) for variant, subject in subjects.items()}
    return Result(
        reports=reports,
        maps={variant: attention_maps(subject, probe.tokens)[0, 0] for variant, subject in subjects.items()},
        twins=_twins_table(reports, losses),
        residuals=tabulate.residuals(reports),
        swaps=swap_table(subjects["softmax"], recipe("softmax").data),
        training=_training_table(runs, reports["softmax"]),
    )


def _twins_table(reports: Mapping[str, Report], losses: Mapping[str, Estimate]) -> Table:
    rows: list[dict[str, Cell]] = []
    for variant, report in reports.items():
        loss = tabulate.cells("value", losses[variant])
        rows.append({"model": variant, "quantity": "validation loss (nats)", **loss, "null": None})
        rows += [{"model": variant, **row} for row in tabulate.signature(report, EPSILON).rows]
    return Table(
        "Three twins: who makes a sink?",
        f"{reports['softmax'].protocol.line()}, epsilon={EPSILON}; {tabulate.BY_SEQUENCE}",
        tuple(rows),
    )


def swap_table(subject: Subject, task: BigramBackcopy) -> Table:
    """Sink_1 and Sink_t while p1 is replaced by p_t or swapped with it; swapping later positions is the control."""
    edits: list[tuple[str, int, list[Edit]]] = [("none", TARGETS[0], [])]
    edits += [("p1 <- p_t", t, [ReplacePosition(0, t)]) for t in TARGETS]
    edits += [("p1 <-> p_t", t, [SwapPositions(0, t)]) for t in TARGETS]
    edits += [("p_t <-> p_t+1", t, [SwapPositions(t, t + 1)]) for t in TARGETS]
    probes: dict[str, Probe] = {
        "natural": study.held_out_probe(task, SEQUENCES),
        "random": random_tokens(task.vocab, task.length, SEQUENCES),
        "repeated": repeated_token(task.vocab, task.length, SEQUENCES),
    }
    rows = [
        {
            "input": name, "edit": words, "t": t + 1,
            **_sinks(measure(subject, probe, edits=edit, positions=(0, t)), t), **_reported(name, words, t + 1),
        }
        for name, probe in probes.items()
        for words, t, edit in edits
    ]  # fmt: skip
    text = (
        f"{subject.name}: n={SEQUENCES} a row, T={task.length}, no BOS, fp32, epsilon={EPSILON}; "
        f"{tabulate.BY_SEQUENCE}; t counts from 1; null: the larger rate under uniform attention; "
        "paper: GPT2-XL on repeated tokens, T=64"
    )
    return Table("Table 7 on the softmax model: the sink follows p1", text, tuple(rows))


def _sinks(report: Report, t: int) -> dict[str, Cell]:
    first, other = report.sink(0, EPSILON), report.sink(t, EPSILON)
    return {
        **tabulate.cells("Sink_1", first),
        **tabulate.cells("Sink_t", other),
        "null": max(report.null_sink_rate(position, EPSILON) for position in (0, t)),
    }


def _reported(name: str, edit: str, t: int) -> dict[str, Cell]:
    """The paper's values for the same input and edit."""
    same_input = PAPER.get(edit, {}) if name == "repeated" else {}
    return dict(zip(("paper Sink_1", "paper Sink_t"), same_input.get(t, (None, None)), strict=True))


def _training_table(runs: Mapping[str, study.Run], report: Report) -> Table:
    columns = ("step", "valid_loss", "alpha_1", "sink_1", "sink_slot")
    rows = tuple(
        {"model": variant, **{name: row[name] for name in columns}}
        for variant, run in runs.items()
        for row in run.history()
    )
    text = (
        f"n={study.WATCHED} held-out sequences a reading, T={report.protocol.length}, no BOS, fp32, epsilon={EPSILON}"
    )
    return Table("Losses and sinks over training", text, rows)
