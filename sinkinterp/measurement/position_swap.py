"""Table 7 of Gu et al. (2025): in a model with learned positions, the sink goes where p1 goes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..backends.subject import Subject
from ..data.tokens import TokenSet
from ..interventions.edit import Edit
from ..interventions.positions import ReplacePosition, SwapPositions
from ..metrics.bootstrap import BY_SEQUENCE, estimate_cells
from ..plots.columns import EDIT, INPUT, NULL, SINK_1, SINK_T, TARGET, published
from ..table import Cell, Table
from .measure import measure
from .report import Report

REPORTED: dict[str, dict[int, tuple[float, float | None]]] = {
    # Gu et al. 2025, Table 7: GPT2-XL, 100 sequences of 64 repeated tokens, epsilon=0.3; t: (Sink_1, Sink_t)
    # its last column is headed 25 a second time; taken for 30
    "none": {5: (0.6228, None)},
    "p1 <- p_t": {
        5: (0.0020, 0.0),
        10: (0.0236, 0.0),
        15: (0.0773, 0.0),
        20: (0.1063, 0.0),
        25: (0.1097, 0.0),
        30: (0.1021, 0.0),
    },
    "p1 <-> p_t": {
        5: (0.0144, 0.5763),
        10: (0.0373, 0.5448),
        15: (0.0678, 0.5281),
        20: (0.0895, 0.5170),
        25: (0.0942, 0.5113),
        30: (0.0973, 0.5022),
    },
}


@dataclass(frozen=True)
class Run:
    """One measurement of the table: what is done to the positions, t (from 0), and the edits that do it."""

    edit: str
    target: int
    edits: Sequence[Edit]


def swap_table(
    subject: Subject,
    token_sets: Mapping[str, TokenSet],
    targets: Sequence[int],
    epsilon: float = 0.3,
    on_run: Callable[[int, int], None] = lambda done, of: None,
) -> Table:
    """Sink_1 and Sink_t while p1 is replaced by p_t or swapped with it; swapping p_t and p_{t+1} is the control.

    `token_sets` by the name of the input, all of one size; `targets` are positions from 0, while t in the
    table counts from 1. The paper's values stand beside repeated tokens.
    """
    runs = _runs(targets)
    rows: list[dict[str, Cell]] = []
    for name, token_set in token_sets.items():
        for run in runs:
            on_run(len(rows), len(token_sets) * len(runs))
            report = measure(subject, token_set, edits=run.edits, positions=(0, run.target))
            place: dict[str, Cell] = {INPUT: name, EDIT: run.edit, TARGET: run.target + 1}
            rows.append(place | _sinks(report, run.target, epsilon) | _reported(name, run))
    on_run(len(rows), len(rows))
    note = _note(report, token_sets, epsilon)
    return Table(f"Table 7 on {subject.name}: the sink follows p1", note, tuple(rows))


def _runs(targets: Sequence[int]) -> list[Run]:
    return [
        Run("none", targets[0], ()),
        *(Run("p1 <- p_t", t, [ReplacePosition(0, t)]) for t in targets),
        *(Run("p1 <-> p_t", t, [SwapPositions(0, t)]) for t in targets),
        *(Run("p_t <-> p_t+1", t, [SwapPositions(t, t + 1)]) for t in targets),
    ]


def _sinks(report: Report, target: int, epsilon: float) -> dict[str, Cell]:
    return {
        **estimate_cells(SINK_1, report.sink(0, epsilon)),
        **estimate_cells(SINK_T, report.sink(target, epsilon)),
        NULL: max(report.null_sink_rate(position, epsilon) for position in (0, target)),
    }


def _reported(input_name: str, run: Run) -> dict[str, Cell]:
    by_target = REPORTED.get(run.edit, {}) if input_name == "repeated" else {}
    sink_1, sink_t = by_target.get(run.target + 1, (None, None))
    return {published(SINK_1): sink_1, published(SINK_T): sink_t}


def _note(report: Report, token_sets: Mapping[str, TokenSet], epsilon: float) -> str:
    protocol = report.protocol
    sources = ", ".join(f"{name}: {token_set.source}" for name, token_set in token_sets.items())
    has_bos = any(" first" in token_set.bos for token_set in token_sets.values())
    bos = "no BOS unless the input says so" if has_bos else "no BOS"
    weights = f", weights: {protocol.revision}" if protocol.revision else ""
    encoder = f", encoder {protocol.encoder}" if protocol.encoder else ""
    return (
        f"{protocol.model}: n={protocol.sequences} a row, T={protocol.length}, {bos}{encoder}{weights}, "
        f"{protocol.dtype}, epsilon={epsilon}; {BY_SEQUENCE}; t counts from 1; "
        f"null: the larger rate under uniform attention; {sources}; "
        "paper: GPT2-XL, repeated tokens, T=64"
    )
