"""sweep: many interventions on one model, each beside the untouched model and beside random ones of equal size."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal

import torch

from ..attention import Edit, called, per_sequence
from ..backends.subject import Subject
from ..checks import InputError, accepting, check_count, keywords, whole_number
from ..data.progress import OnProgress, progress_of
from ..data.tokens import TokensLike
from ..interventions.edit import Edits, description, edits_of
from ..metrics.bootstrap import REALS, SHARES, SIZES, Range, changes_of, estimate, estimate_cells, intervals, mean_cells
from ..metrics.importance import NEXT_TOKEN_LOSS, VISIBLE, PerSequence, sink_rate as rate_of
from ..metrics.instruments import LOSS, Instruments
from ..plots.theme import sweep_figure
from ..report.report import Report
from ..table import EDIT, Cell, Table
from .inputs import ModelLike, inputs_of, protocol_of
from .measure import measure

ReportMetric = Callable[[Report], PerSequence]
SEEDS = 3  # of a random control
MOST_SEEDS = 1000


@keywords
def sink_rate(
    model: Report | ModelLike, tokens: TokensLike | Any = None, *, position: int = 0, epsilon: float = 0.3
) -> PerSequence:
    """Sink_k^epsilon of each sequence, k = position + 1: the share of its heads above epsilon; 0..1.

    Takes a report, or a model and tokens as `measure` does. Raises InputError for anything else.
    """
    report = model if isinstance(model, Report) and tokens is None else measure(model, tokens, positions=(position,))
    return rate_of(report.alpha(position), epsilon)


def importance(report: Report, position: int = 0) -> PerSequence:
    """alpha_k of each sequence, k = position + 1, mean over heads; 0..1."""
    return report.alpha(position).mean((1, 2))


def loss(report: Report) -> PerSequence:
    """Mean next-token loss of each sequence, in nats."""
    return report.extra(NEXT_TOKEN_LOSS).nanmean(1)


@keywords
def sweep(
    model: ModelLike,
    tokens: TokensLike | Any,
    edits: Edits | Sequence[Edits],
    *,
    metric: ReportMetric | None = None,
    control: Literal["random"] | int | None = None,
    instruments: Instruments = (),
    progress: bool | OnProgress = True,
) -> Table:
    """One row per edit (or list of edits made together): the metric, its change, and the change that a control makes.

    Takes the models and tokens that `measure` takes. `metric` (default: `si.sink_rate`) gives a number per sequence of
    a report, which holds the loss and what `instruments` measure; changes are by sequence. A control runs every edit
    again on the same number of heads, positions or dimensions, drawn at random from `control` seeds ("random": three).
    The table has its mean change too. Raises InputError for an edit that does not fit or has no control.
    """
    seeds = _seeds(control)
    metric = accepting(sink_rate if metric is None else metric, "a metric, such as si.sink_rate,", None)
    groups = _groups(edits)
    subject, token_set = inputs_of(model, tokens)
    controls = [_controls(group, subject, token_set.shortest, seeds) for group in groups]
    runs = [(), *(run for group, random_edits in zip(groups, controls, strict=True) for run in (group, *random_edits))]
    values: list[PerSequence] = []
    with progress_of(progress, f"sweeping {subject.name}") as on_run:
        for done, run in enumerate(runs):  # only the metric of each report is kept: there may be very many runs
            on_run(done, len(runs))
            report = measure(subject, token_set, edits=run, instruments=(LOSS, instruments), progress=False)
            values.append(_answer(metric, report))
        on_run(len(runs), len(runs))
    protocol = protocol_of(subject, token_set, (), VISIBLE).line()
    note = f"{subject.name}: {protocol}; {_name(metric)}; changes by sequence; {intervals(len(token_set.tokens))}"
    figure = partial(sweep_figure, x=EDIT, quantities=("change",))
    if seeds:
        note += f"; control: the mean of {seeds} random ones of equal size"
    return Table("What does each intervention change?", note, _rows(groups, values, seeds, _ends(metric)), figure)


def _groups(edits: Any) -> list[tuple[Edit, ...]]:
    """The edits of every row."""
    given = [edits] if isinstance(edits, Edit) or not isinstance(edits, Iterable) else list(edits)
    groups = [edits_of(group) for group in given]
    for group in groups or [()]:
        check_count(group, "edits of a sweep, and of each of its groups")
    return groups


def _answer(metric: ReportMetric, report: Report) -> PerSequence:
    """A metric's number per sequence. Raises InputError where it gives something else."""
    answer = called(metric, _name(metric), report)
    fix = "take si.sink_rate, or the mean over the other axes"
    per_sequence(answer, report.protocol.sequences, f"the metric {_name(metric)}", 1, fix)
    if answer.isinf().any():
        raise InputError(f"{_name(metric)} gave a number that is not finite, which has no change; clamp it")
    return answer.cpu().double()


def _seeds(control: Any) -> int:
    if control is None or (isinstance(control, str) and control == "random"):
        return 0 if control is None else SEEDS
    return whole_number(control, "a control is 'random', or a number of seeds, which", 1, MOST_SEEDS)


def _controls(group: Sequence[Edit], subject: Subject, length: int, seeds: int) -> list[tuple[Edit, ...]]:
    generators = [torch.Generator().manual_seed(seed) for seed in range(seeds)]
    return [tuple(edit.control(subject.shape, length, generator) for edit in group) for generator in generators]


def _ends(metric: ReportMetric) -> Range:
    known: dict[Any, Range] = {sink_rate: SHARES, importance: SHARES, loss: SIZES}
    return known.get(getattr(metric, "func", metric), REALS)  # of a partial, that of its function


def _rows(
    groups: Sequence[Sequence[Edit]], values: Sequence[PerSequence], seeds: int, ends: Range
) -> tuple[dict[str, Cell], ...]:
    """`values`: of the untouched model, then of each group of edits and of its controls."""
    before, *others = values
    rows = [_row("none", before, before, [before] * bool(seeds), ends)]
    for i, group in enumerate(groups):
        after, *controls = others[i * (1 + seeds) : (i + 1) * (1 + seeds)]
        rows.append(_row(" + ".join(map(description, group)), before, after, controls, ends))
    return tuple(rows)


def _row(
    name: str, before: PerSequence, after: PerSequence, controls: Sequence[PerSequence], ends: Range
) -> dict[str, Cell]:
    row = {EDIT: name, **mean_cells("value", after, ends), **mean_cells("change", after - before, changes_of(ends))}
    if controls:
        control_change = torch.stack(list(controls)).mean(0) - before
        row |= estimate_cells("control change", estimate(control_change))
        row |= estimate_cells("change beyond control", estimate(after - before - control_change))
    return row


def _name(metric: ReportMetric) -> str:
    return getattr(metric, "__name__", repr(metric))
