"""sweep: many interventions on one model, each beside the untouched model and beside random ones of equal size."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..backends.subject import Subject
from ..data.tokens import TokenSet
from ..errors import InputError
from ..interventions.description import description
from ..interventions.edit import Edit
from ..metrics import sink
from ..metrics.bootstrap import BY_SEQUENCE, cells, estimate
from ..table import Cell, Table
from .instruments import LOSS, Instrument
from .measure import measure
from .report import Report

Tokens = Int[Tensor, "sequence pos"]
PerSequence = Float[Tensor, " sequence"]
Metric = Callable[[Report], PerSequence]
Edits = Edit | Sequence[Edit]
SEEDS = 3  # of a random control


def sink_rate(report: Report, position: int = 0, epsilon: float = 0.3) -> PerSequence:
    """Sink_k^epsilon of each sequence, k = position + 1: the share of its heads above epsilon; 0..1."""
    return sink.sink_rate(report.alpha(position), epsilon)


def importance(report: Report, position: int = 0) -> PerSequence:
    """alpha_k of each sequence, k = position + 1, mean over heads; 0..1."""
    return report.alpha(position).mean((1, 2))


def loss(report: Report) -> PerSequence:
    """Mean next-token loss of each sequence, in nats."""
    return report.extra("loss").nanmean(1)


def sweep(
    subject: Subject,
    tokens: Tokens | TokenSet,
    edits: Sequence[Edits],
    *,
    metric: Metric = sink_rate,
    control: Literal["random"] | int | None = None,
    instruments: Sequence[Instrument] = (),
    on_run: Callable[[int, int], None] = lambda done, of: None,
) -> Table:
    """One row per edit (or list of edits made together): the metric, its change, and the change that a control makes.

    `metric` gives a number per sequence of a report, on which the loss and `instruments` are taken along; changes are
    by sequence. With a control, every edit is run again with as many other heads, positions or dimensions drawn at
    random, from `control` seeds ("random": three), and their mean change stands beside it. Raises InputError for an
    edit that does not fit or has no control.
    """
    if not edits:
        raise InputError("a sweep needs at least one edit")
    seeds = SEEDS if control == "random" else control or 0
    if not isinstance(seeds, int) or seeds < 0:
        raise InputError(f"a control is 'random' or a number of seeds, 1 or more; got {control!r}")
    token_set = tokens if isinstance(tokens, TokenSet) else TokenSet.of(tokens)
    groups = [(one,) if isinstance(one, Edit) else tuple(one) for one in edits]
    controls = [_controls(group, subject, token_set.tokens.shape[1], seeds) for group in groups]
    runs = [(), *(run for group, others in zip(groups, controls, strict=True) for run in (group, *others))]
    found: list[PerSequence] = []
    lines: list[str] = []
    for done, run in enumerate(runs):  # of each report the metric alone is kept: there may be one for every place
        on_run(done, len(runs))
        report = measure(subject, token_set, edits=run, instruments=(LOSS, *instruments))
        found.append(metric(report).cpu())
        lines.append(report.protocol.line())
    on_run(len(runs), len(runs))
    values = iter(found)
    before = next(values)
    rows = [_row("none", before, before, [before] * bool(seeds))]
    for group, others in zip(groups, controls, strict=True):
        rows.append(_row(" + ".join(map(description, group)), before, next(values), [next(values) for _ in others]))
    note = f"{subject.name}: {lines[0]}; {_name(metric)}; changes by sequence; {BY_SEQUENCE}"
    if seeds:
        note += f"; control: the mean of {seeds} random ones of equal size"
    return Table("What does each intervention change?", note, tuple(rows))


def _controls(group: Sequence[Edit], subject: Subject, length: int, seeds: int) -> list[tuple[Edit, ...]]:
    generators = [torch.Generator().manual_seed(seed) for seed in range(seeds)]
    return [tuple(edit.control(subject.shape, length, generator) for edit in group) for generator in generators]


def _row(name: str, before: PerSequence, after: PerSequence, others: Sequence[PerSequence]) -> dict[str, Cell]:
    row = {"edit": name, **cells("value", estimate(after)), **cells("change", estimate(after - before))}
    if others:
        by_chance = torch.stack(list(others)).mean(0) - before
        row |= cells("control change", estimate(by_chance))
        row |= cells("change beyond control", estimate(after - before - by_chance))
    return row


def _name(metric: Metric) -> str:
    return getattr(metric, "__name__", repr(metric))
