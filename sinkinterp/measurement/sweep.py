"""What interventions change: sweep compares many by any metric, spread by how far the change of one token goes.

A sweep shows each intervention beside the untouched model and beside random ones of equal size.

Over-mixing (Barbero et al. 2025, arXiv:2504.02732): two passes read each text, the second with another token at one
position. The change is the distance of the two residuals over the norm of the first:

    table = spread("gpt2", texts, edits={"none": [], "first key hidden": si.interventions.RemoveColumn()})
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention import RESIDUAL, Edit, called, per_sequence
from ..backends.subject import Subject
from ..checks import LARGEST, InputError, accepting, check_count, instance_of, whole_number
from ..data.progress import OnProgress, counting, progress_of
from ..data.tokens import Tokens, TokensLike
from ..interventions.attention_layers import Dropped, RemoveColumn
from ..interventions.edit import Edits, edits_of
from ..metrics import estimates
from ..metrics.importance import VISIBLE
from ..metrics.instruments import LOSS, Instruments
from ..metrics.metric import NEXT_TOKEN_LOSS, PerSequence, next_token_loss
from ..metrics.sinks import sink_rate
from ..plots.theme import sweep_figure
from ..report.report import Report
from ..table import BLOCK, EDIT, LOSS as NATS, Cell, Table, no_estimate
from .measure import ModelLike, equal_inputs_of, inputs_of, measure, passes, protocol_of, run_note

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


NEAR, FAR, ALL, TIMES = "change, near", "change, far", "change", "times the first"
Later = Float[Tensor, "sequence later"]
Changes = tuple[Float[Tensor, "sequence block later"], PerSequence]
NEXT = 8  # positions behind the changed token that count as near
WITH, HIDDEN, LOGIT, CONTROL = "none", "first key hidden", "sink logit in its place", "control: another key hidden"


def without_sink(control: int) -> dict[str, Edits]:
    """The edits that take the sink away, after none: its key hidden from all layers, and a sink logit in its place.

    The sink logit has the first key's score, and no value. control: the position of the key that is hidden instead.
    """
    return {
        WITH: [],
        HIDDEN: RemoveColumn(),
        LOGIT: RemoveColumn(share=Dropped()),
        CONTROL: RemoveColumn(positions=[control]),
    }


def spread(
    model: ModelLike,
    tokens: TokensLike | Any = None,
    *,
    position: int | None = None,
    edits: Mapping[str, Edits] | None = None,
    seed: int = 0,
) -> Table:
    """How much the change of the token at `position` changes later residuals, by edit and block.

    Rows have the mean relative change of the positions behind it: of all, of the next 8, and of the last quarter of
    the text. `times the first` is the change over that of the first edit. Block `n_layers` is the last output.
    position: a third of the length by default. edits: by name; by default none, and those of `without_sink`. The other
    token is drawn from the texts with `seed`. Takes models and tokens as `measure` does, of one length. Raises
    InputError for a position at which nothing follows or the sink is.
    """
    subject, given = equal_inputs_of(model, tokens)
    length = given.shape[1]
    check_count(given[0], "tokens of a text, as a change spreads to later ones", 4)
    at = whole_number(length // 3 if position is None else position, "position, from 1,", 1, length - 2)
    changed = with_other_token(given, at, seed)
    named = without_sink(at // 2 or 2) if edits is None else instance_of(edits, Mapping, "edits have names here")
    runs = {name: changes(subject, given, changed, at, some) for name, some in named.items()}
    return spread_table(subject, given, at, runs)


def spread_table(subject: Subject, given: Tokens, at: int, runs: Mapping[str, Changes]) -> Table:
    """The table of `spread`, from what `changes` returns for each edit."""
    length, before = given.shape[1], next(iter(runs.values()))[0]
    rows: list[dict[str, Cell]] = []
    for name, (change, loss) in runs.items():
        cells = estimates.mean_cells(NATS, loss, estimates.SIZES)
        for block in range(change.shape[1]):
            of_block = _cells(change[:, block], before[:, block], length)
            rows.append({EDIT: name, BLOCK: block, **of_block, **cells})
    figure = partial(sweep_figure, x=BLOCK, quantities=(ALL, NEAR, FAR), by=EDIT)
    note = (
        f"{run_note(subject, given)}; token {at} (from 0) becomes another one of the texts; change: distance of the "
        f"residuals over the norm of the first, mean over positions behind it; near: the next {NEXT}; far: those of "
        f"the last quarter; {TIMES}: over the first edit (fewer than 30 texts: Fieller); block "
        f"{subject.shape.n_layers} is the last output; loss of the unchanged texts in nats; null: 0, an "
        f"equal token; {estimates.intervals(len(given))}"
    )
    return Table.of("How far does the change of one token spread?", note, tuple(rows), figure)


def _cells(change: Later, before: Later, length: int) -> dict[str, Cell]:
    """The mean changes of a block, and the change over that of the first edit, where it has one."""
    cells: dict[str, Cell] = {}
    for column, some in {ALL: slice(None), NEAR: slice(NEXT), FAR: slice(-max(1, length // 4), None)}.items():
        cells |= estimates.mean_cells(column, change[:, some].mean(1), estimates.SIZES)
    if not before.any():
        return cells | no_estimate(TIMES)
    return cells | estimates.estimate_cells(TIMES, estimates.ratio(change.mean(1), before.mean(1)))


def with_other_token(tokens: Tokens, position: int, seed: int = 0) -> Tokens:
    """The texts with another token at a position, drawn from all that they hold there or later.

    Raises InputError where they hold one token alone.
    """
    generator = torch.Generator().manual_seed(whole_number(seed, "seed", 0, LARGEST))
    pool, changed = tokens[:, position:].flatten(), tokens.clone()
    for row in changed:
        others = pool[pool != row[position]]
        if not len(others):
            raise InputError("the texts hold one token alone, so none can take its place")
        row[position] = others[torch.randint(len(others), (1,), generator=generator)]
    return changed


def changes(subject: ModelLike, tokens: TokensLike | Any, changed: Tokens, position: int, edits: Edits = ()) -> Changes:
    """The relative change of the residuals behind `position`, by block; and the loss of the unchanged texts in nats."""
    subject, tokens = equal_inputs_of(subject, tokens)
    reads = {"x": RESIDUAL.read(lambda x: x[:, position + 1 :])}
    parts, losses = [], []
    for rows, batch in passes(subject, tokens):
        before = subject.run(batch, reads=reads, edits=edits_of(edits))
        after = subject.run(changed[rows], reads=reads, edits=edits_of(edits), logits=False)
        x = before["x"].float()
        parts.append(((after["x"].float() - x).norm(dim=-1) / x.norm(dim=-1)).cpu())
        losses.append(next_token_loss(before.logits, batch).mean(1).cpu())
    return torch.cat(parts), torch.cat(losses)
