"""Table 7 of Gu et al. (2025): in a model with learned positions, the sink goes where p1 goes."""

from collections.abc import Callable, Mapping, Sequence

from . import tabulate
from .adapters.subject import Subject
from .data.probes import Probe
from .interventions.edit import Edit
from .interventions.positions import ReplacePosition, SwapPositions
from .measurement import measure
from .report import Report
from .table import Cell, Table


def swap_table(
    subject: Subject,
    probes: Mapping[str, Probe],
    targets: Sequence[int],
    epsilon: float = 0.3,
    on_run: Callable[[int, int], None] = lambda done, of: None,
) -> Table:
    """Sink_1 and Sink_t while p1 is replaced by p_t or swapped with it; swapping p_t and p_{t+1} is the control.

    `probes` by the name of the input, all of one size, without BOS; `targets` are positions from 0, while t in the
    table counts from 1.
    """
    edits: list[tuple[str, int, list[Edit]]] = [("none", targets[0], [])]
    edits += [("p1 <- p_t", t, [ReplacePosition(0, t)]) for t in targets]
    edits += [("p1 <-> p_t", t, [SwapPositions(0, t)]) for t in targets]
    edits += [("p_t <-> p_t+1", t, [SwapPositions(t, t + 1)]) for t in targets]
    rows: list[dict[str, Cell]] = []
    for name, probe in probes.items():
        for words, t, edit in edits:
            on_run(len(rows), len(probes) * len(edits))
            report = measure(subject, probe, edits=edit, positions=(0, t))
            rows.append({"input": name, "edit": words, "t": t + 1, **_sinks(report, t, epsilon)})
    on_run(len(rows), len(rows))
    text = (
        f"{subject.name}: n={report.protocol.sequences} a row, T={report.protocol.length}, no BOS, "
        f"{report.protocol.dtype}, epsilon={epsilon}; {tabulate.BY_SEQUENCE}; t counts from 1; "
        f"null: the larger rate under uniform attention; {', '.join(f'{k}: {p.source}' for k, p in probes.items())}"
    )
    return Table(f"Table 7 on {subject.name}: the sink follows p1", text, tuple(rows))


def _sinks(report: Report, t: int, epsilon: float) -> dict[str, Cell]:
    return {
        **tabulate.cells("Sink_1", report.sink(0, epsilon)),
        **tabulate.cells("Sink_t", report.sink(t, epsilon)),
        "null": max(report.null_sink_rate(position, epsilon) for position in (0, t)),
    }
