"""Table 7 of Gu et al. (2025): in a model with learned positions, the sink goes where p1 goes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import isfinite
from statistics import fmean
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..attention import Edit
from ..backends.load import subject_of
from ..checks import InputError, check_count, different_numbers
from ..data.progress import OnProgress, counting, no_progress
from ..data.tokens import TokenSet, TokensLike, repeated_token
from ..files import data_of
from ..interventions.changes import ReplacePosition, SwapPositions
from ..measurement.measure import ModelLike, inputs_of, measure
from ..metrics.estimates import estimate_cells, intervals
from ..plots.theme import BAR_ERROR, GREY, cells_of, colour, error_bars, escaped, themed, unique_values
from ..report.readings import short_name
from ..report.report import Report
from ..table import EDIT, INPUT, MODEL, NULL, SINK_1, SINK_T, TARGET, Cell, Table, published

_PUBLISHED = data_of("applications/table7.toml")
REPORTED = {edit: {int(t): (*rates, None)[:2] for t, rates in by_t.items()} for edit, by_t in _PUBLISHED.items()}
TARGETS = tuple(REPORTED["p1 <- p_t"])  # the paper's t, from 1
MIN_QUERIES = 4  # that see position t, so that its importance is a mean over several queries
RATES = (SINK_1, SINK_T)
UNTOUCHED, SWAPPED = "none", "p1 <-> p_t"
REPEATED, OURS, THEIRS = "repeated", "this model", "GPT2-XL, the paper's"
LEAST = 0.01  # a smaller Sink_1 is no sink
GRID = ((UNTOUCHED, SINK_1), *((edit, rate) for edit in ("p1 <- p_t", SWAPPED) for rate in RATES))
RATE_NOTE = "percent of (sequence, layer, head) with a sink on the first token, and on token t"


Run = tuple[str, int, Sequence[Edit]]  # what is done to the positions, t (from 0), and the edits that do it


def swap_table(
    subject: ModelLike,
    token_sets: TokensLike | Mapping[str, TokensLike] | None = None,
    targets: Sequence[int] | None = None,
    epsilon: float = 0.3,
    on_run: OnProgress = no_progress,
) -> Table:
    """Sink_1 and Sink_t while p1 is replaced by p_t or swapped with it; swapping p_t and p_{t+1} is the control.

    `token_sets` are what `measure` takes, or several of these by their names, all of one size. The default is the
    paper's input: 100 sequences of 64 repeated tokens, or shorter ones if the model's context is.
    `targets` are positions from 0, while t in the table counts from 1; the default is the paper's that fit. The paper's
    values stand beside repeated tokens. Raises InputError for inputs of several sizes, and for targets that do not fit.
    """
    subject = subject_of(subject)
    if token_sets is None:
        token_sets = {REPEATED: repeated_token(subject.shape.vocab, min(64, subject.shape.n_ctx or 64), 100)}
    given = token_sets if isinstance(token_sets, Mapping) and "input_ids" not in token_sets else {"given": token_sets}
    check_count(given, "token_sets by their names")
    read = {name: inputs_of(subject, tokens)[1] for name, tokens in given.items()}
    targets = paper_targets(next(iter(read.values())).shortest) if targets is None else targets
    targets = different_numbers(targets, "targets", 1)
    sizes = sorted({(len(token_set.tokens), token_set.shortest) for token_set in read.values()})
    if len(sizes) > 1:
        raise InputError(f"token sets are all of one size; got (sequences, tokens) {', '.join(map(str, sizes))}")
    last, (_, length) = max(targets), sizes[0]
    if last + 1 >= length:
        raise InputError(f"the control swaps position {last} with the next; texts of {length} tokens have none")
    rows: list[dict[str, Cell]] = []
    for (name, token_set), (edit, target, edits) in counting([*product(read.items(), _runs(targets))], on_run):
        report = measure(subject, token_set, edits=edits, positions=(0, target))
        place: dict[str, Cell] = {INPUT: name, EDIT: edit, TARGET: target + 1}
        rows.append(place | _sinks(report, target, epsilon) | _reported(name, edit, target))
    table = Table.of("", _note(report, read, epsilon), rows, swap_chart)
    return replace(table, title=f"Table 7 on {subject.name}: {swap_finding(table)}")


def swap_finding(table: Table) -> str:
    """Returns whether the sink follows p1, by what `swap_table` measured: on all inputs, or input by input.

    It follows if position t has at least half of Sink_1 once p1 and p_t are swapped, mean over t.
    """
    found = {name: _finding(table.where(**{INPUT: name})) for name in unique_values(table, INPUT)}
    claims = {claim for claim, _ in found.values()}
    if len(claims) == 1:
        numbers = "; ".join(dict.fromkeys(filter(None, (shares for _, shares in found.values()))))
        return f"{claims.pop()}{numbers and f' ({numbers})'}"
    return "; ".join(f"{name}: {claim}{shares and f' ({shares})'}" for name, (claim, shares) in found.items())


def _finding(rows: Table) -> tuple[str, str]:
    """A claim about one input, and its two shares in percent."""
    before = fmean(rows.where(**{EDIT: UNTOUCHED}).numbers(SINK_1))
    moved = fmean(rows.where(**{EDIT: SWAPPED}).numbers(SINK_T))
    if before <= max([LEAST, *rows.numbers(NULL)]):
        return "there is no sink to follow p1", ""
    claim = "the sink follows p1" if 2 * moved >= before else "the sink does not follow p1"
    return claim, _shares(moved, before)


def _shares(part: float, whole: float) -> str:
    """Two shares in percent, with a decimal for both unless both are whole."""
    percents = [f"{100 * share:.1f}" for share in (part, whole)]
    if all(percent.endswith(".0") for percent in percents):
        percents = [percent.removesuffix(".0") for percent in percents]
    return f"{' of '.join(percents)}%"


def paper_targets(length: int) -> list[int]:
    """The paper's t, counted from 0, that fit sequences of this length; if some do not fit, also the last that does."""
    last = length - MIN_QUERIES + 1
    fitting = [t for t in TARGETS if t <= last]
    return [t - 1 for t in dict.fromkeys(fitting if len(fitting) == len(TARGETS) else [*fitting, last])]


def paper_grid(table: Table) -> Table:
    """Table 7 as the paper prints it: a row for each edit, rate and model, a column for each t, in percent.

    The rows of GPT2-XL are the paper's. Repeated tokens, as in the paper, or the first input without them; means over
    seeds. Takes what `swap_table` returns.
    """
    inputs = unique_values(table, INPUT)
    chosen = table.where(**{INPUT: REPEATED if REPEATED in inputs else inputs[0]})
    ours = chosen.with_rows({MODEL: OURS, **row} for row in chosen.records())
    targets, rows = unique_values(chosen, TARGET), list[dict[str, Cell]]()
    for edit, rate in GRID:
        of_edit = ours.where(**{EDIT: edit})
        cells = {THEIRS: _percents(of_edit, published(rate), targets)}
        cells |= {str(m): _percents(of_edit.where(**{MODEL: m}), rate, targets) for m in unique_values(ours, MODEL)}
        rows += [{EDIT: edit, "rate": rate, "of": short_name(name), **row} for name, row in cells.items()]
    protocol, *_ = table.note.split("; ")
    note = f"{RATE_NOTE}; {inputs[0]} tokens; t counts from 1; {protocol}"
    return Table.of(table.title, note, tuple(row for row in rows if any([*row.values()][3:])))


def _percents(rows: Table, column: str, targets: Sequence[Cell]) -> dict[str, Cell]:
    """The mean over the rows of each t, as text; empty without numbers."""
    found = {t: [x for x in rows.where(**{TARGET: t}).numbers(column) if isfinite(x)] for t in targets}
    return {f"t={t}": f"{100 * fmean(x):.1f}" if x else "" for t, x in found.items()}


def _runs(targets: Sequence[int]) -> list[Run]:
    return [
        (UNTOUCHED, targets[0], ()),
        *(("p1 <- p_t", t, [ReplacePosition(0, t)]) for t in targets),
        *((SWAPPED, t, [SwapPositions(0, t)]) for t in targets),
        *(("p_t <-> p_t+1", t, [SwapPositions(t, t + 1)]) for t in targets),
    ]


def _sinks(report: Report, target: int, epsilon: float) -> dict[str, Cell]:
    first, there = (report.sink_rate(position, epsilon) for position in (0, target))
    null = max(report.null_sink_rate(position, epsilon) for position in (0, target))
    return {**estimate_cells(SINK_1, first), **estimate_cells(SINK_T, there), NULL: null}


def _reported(input_name: str, edit: str, target: int) -> dict[str, Cell]:
    by_target = REPORTED.get(edit, {}) if input_name == REPEATED else {}
    return dict(zip(map(published, RATES), by_target.get(target + 1, (None, None)), strict=True))


def _note(report: Report, token_sets: Mapping[str, TokenSet], epsilon: float) -> str:
    protocol = report.protocol
    sources = ", ".join(f"{name}: {token_set.source}" for name, token_set in token_sets.items())
    has_bos = any(" first" in token_set.bos for token_set in token_sets.values())
    line = replace(protocol, bos="only where the input says so" if has_bos else "none").line("source", "edits")
    return (
        f"{protocol.model}: {line}, epsilon={epsilon}; {intervals(protocol.sequences)}; t counts from 1; null: the "
        f"larger rate under uniform attention; {sources}; paper: GPT2-XL, repeated tokens, T=64"
    )


def swap_chart(table: Table) -> go.Figure:
    """Sink_1 and Sink_t under each edit of the positions, one panel per input; from `swap_table`.

    Grey dashes: the null, where the table has one; hollow marks: the values that the paper reports, where it has them.
    """
    inputs = unique_values(table, INPUT)
    titles = [f"input: {escaped(name)}" for name in inputs]
    n, spacing = len(inputs), 0.24 / len(inputs)
    figure = make_subplots(n, 1, subplot_titles=titles, shared_xaxes=True, vertical_spacing=spacing)
    for i, name in enumerate(inputs):
        rows = table.where(**{INPUT: name})
        x = [[escaped(edit) for edit in rows.frame[EDIT]], [str(t) for t in rows.frame[TARGET]]]
        for trace in _traces(rows):
            figure.add_trace(trace.update(x=x), row=i + 1, col=1)
    figure.update_xaxes(title="position t (from 1, as in the paper), and the edit", row=len(inputs), col=1)
    figure.update_layout(scattermode="group", bargap=0.3)
    figure.update_yaxes(range=[0, 1.05], tickformat=".0%", title="share of heads")
    caption = (
        "Share of (sequence, layer, head) whose importance of the first token (Sink_1), and of the token at position t "
        "(Sink_t), exceeds epsilon, before (none) and after every edit."
    )
    return themed(figure, table.title, 140 + 190 * len(inputs), f"{caption} {table.note}")


def _traces(rows: Table) -> Iterator[Any]:
    """Bars of what was measured; marks of what the paper reports, and of the nulls."""
    marks = {"mode": "markers", "cliponaxis": False}
    for i, rate in enumerate(RATES):
        error = (error_bars(rows, rate) or {}) | BAR_ERROR
        about = {"name": rate, "legendgroup": rate, "offsetgroup": rate, "marker": {"color": colour(i)}}
        yield go.Bar(y=rows.numbers(rate), error_y=error, **about)
    for i, (rate, symbol) in enumerate(zip(RATES, ("circle-open", "diamond-open"), strict=True)):
        if published(rate) in rows.frame:
            mark = {"color": colour(i + 2), "symbol": symbol, "size": 12, "line": {"width": 3}}
            about = {"name": f"{rate}, GPT2-XL in the paper", "legendgroup": published(rate), "offsetgroup": rate}
            yield go.Scatter(y=cells_of(rows, published(rate)), marker=mark, **about, **marks)
    for rate in RATES if NULL in rows.frame else ():
        mark = {"color": GREY, "symbol": "line-ew-open", "size": 24, "line": {"width": 3}}
        about = {"name": "larger rate under uniform attention", "legendgroup": "null", "offsetgroup": rate}
        yield go.Scatter(y=rows.numbers(NULL), marker=mark, **about, **marks)
