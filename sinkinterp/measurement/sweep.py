"""The effects of interventions, each beside the untouched model and beside random ones of equal size, by any metric."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal

import torch

from ..attention import Edit, called, per_sequence
from ..checks import InputError, accepting, check_count, whole_number
from ..data.progress import OnProgress, counting, progress_of
from ..data.tokens import TokensLike
from ..interventions.changes import Edits, edits_of
from ..metrics import estimates
from ..metrics.importance import VISIBLE, sink_rate
from ..metrics.instruments import LOSS, Instruments
from ..metrics.metric import NEXT_TOKEN_LOSS, PerSequence
from ..plots.theme import sweep_figure
from ..report.report import Report
from ..table import EDIT, Cell, Table
from .measure import ModelLike, inputs_of, measure, protocol_of

ReportMetric = Callable[[Report], PerSequence]
SEEDS = 3  # of a random control
MOST_SEEDS = 1000


def first_sink_rate(report: Report) -> PerSequence:
    """Sink_1 of each sequence at epsilon 0.3: the share of (layer, head) that give the first token more; 0..1."""
    return sink_rate(report.alpha(), 0.3)


def importance(report: Report, position: int = 0) -> PerSequence:
    """alpha_k of each sequence, k = position + 1, mean over heads; 0..1."""
    return report.alpha(position).mean((1, 2))


def loss(report: Report) -> PerSequence:
    """Mean next-token loss of each sequence, in nats."""
    return report.extra(NEXT_TOKEN_LOSS).nanmean(1)


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

    Takes the models and tokens that `measure` takes. `metric` (default: Sink_1) gives a number per sequence of
    a report, which holds the loss and what `instruments` measure; changes are by sequence. A control runs every edit
    again on the same number of heads, positions or dimensions, drawn at random from `control` seeds ("random": three).
    The table has its mean change too. Raises InputError for an edit that does not fit or has no control.
    """
    seeds = _seeds(control)
    what = "a metric, such as sinkinterp.measurement.sweep.importance,"
    metric = accepting(first_sink_rate if metric is None else metric, what, None)
    groups = _groups(edits)
    subject, token_set = inputs_of(model, tokens)
    runs: list[Sequence[Edit]] = [()]  # of no edit, then of each group and of its controls
    for group in groups:
        drawn = [torch.Generator().manual_seed(seed) for seed in range(seeds)]
        controls = [[e.control(subject.shape, token_set.shortest, generator) for e in group] for generator in drawn]
        runs += [group, *controls]
    values: list[PerSequence] = []
    with progress_of(progress, f"sweeping {subject.name}") as on_run:
        for run in counting(runs, on_run):  # only the metric of each report is kept: there may be very many runs
            report = measure(subject, token_set, edits=run, instruments=(LOSS, instruments), progress=False)
            values.append(_answer(metric, report))
    protocol = protocol_of(subject, token_set, (), VISIBLE).line()
    note = f"{subject.name}: {protocol}; {_name(metric)}; changes by sequence; {estimates.intervals(len(values[0]))}"
    note += f"; control: the mean of {seeds} random ones of equal size" if seeds else ""
    figure = partial(sweep_figure, x=EDIT, quantities=("change",))
    return Table.of("What does each intervention change?", note, _rows(groups, values, seeds, _ends(metric)), figure)


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
    fix = "take the mean over the other axes"
    per_sequence(answer, report.protocol.sequences, f"the metric {_name(metric)}", 1, fix)
    if answer.isinf().any():
        raise InputError(f"{_name(metric)} gave a number that is not finite, which has no change; clamp it")
    return answer.cpu().double()


def _seeds(control: Any) -> int:
    if control is None or (isinstance(control, str) and control == "random"):
        return 0 if control is None else SEEDS
    return whole_number(control, "a control is 'random', or a number of seeds, which", 1, MOST_SEEDS)


def _ends(metric: ReportMetric) -> estimates.Range:
    known: dict[Any, estimates.Range] = dict.fromkeys((first_sink_rate, importance), estimates.SHARES)
    known[loss] = estimates.SIZES
    return known.get(getattr(metric, "func", metric), estimates.REALS)  # of a partial, that of its function


def _rows(
    groups: Sequence[Sequence[Edit]], values: Sequence[PerSequence], seeds: int, ends: estimates.Range
) -> tuple[dict[str, Cell], ...]:
    """`values`: of the untouched model, then of each group of edits and of its controls."""
    before, *others = values
    rows = [_row("none", before, before, [before] * bool(seeds), ends)]
    rows[0] |= {cell: 0.0 for cell, end in rows[0].items() if "change" in cell and end is not None}  # by definition
    for i, group in enumerate(groups):
        after, *controls = others[i * (1 + seeds) : (i + 1) * (1 + seeds)]
        rows.append(_row(" + ".join(edit.in_words for edit in group), before, after, controls, ends))
    return tuple(rows)


def _row(
    name: str, before: PerSequence, after: PerSequence, controls: Sequence[PerSequence], ends: estimates.Range
) -> dict[str, Cell]:
    rates = ends == estimates.SHARES
    value = estimates.rate(after) if rates else estimates.estimate(after).within(ends)
    change = partial(estimates.change_of_rates if rates else estimates.difference, paired=True)
    row: dict[str, Cell] = {EDIT: name, **estimates.estimate_cells("value", value)}
    row |= estimates.estimate_cells("change", change(before, after))
    if controls:
        control = torch.stack(list(controls)).mean(0)
        row |= estimates.estimate_cells("control change", change(before, control))
        row |= estimates.estimate_cells("change beyond control", change(control, after))
    return row


def _name(metric: ReportMetric) -> str:
    return getattr(metric, "__name__", repr(metric))
