"""Tables over something that is turned: the length of sequences, optimiser steps."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..measurement.report import Report
from ..metrics.bootstrap import BY_SEQUENCE, cells
from ..table import Cell, Table

THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5)


def lengths(reports: Iterable[Report], epsilons: Sequence[float] = THRESHOLDS) -> Table:
    """Sink_1 over T for several epsilons beside uniform attention's, a report per length (Gu et al. 2025, Figure 3)."""
    reports = sorted(reports, key=lambda report: report.protocol.length)
    rows = tuple(
        {
            "model": report.protocol.model,
            "T": report.protocol.length,
            "epsilon": epsilon,
            **cells("Sink_1", report.sink(0, epsilon)),
            "null": report.null_sink_rate(0, epsilon),
            "n": report.protocol.sequences,
        }
        for epsilon in epsilons
        for report in reports
    )
    sources = "; ".join(dict.fromkeys(_without_length(report) for report in reports))
    found = dict.fromkeys(report.protocol.length for report in reports)
    turned = f"T={', '.join(map(str, found))}, epsilon={', '.join(map(str, epsilons))}"
    return Table("Sink_1 over the length of sequences", f"{sources}; {turned}; {BY_SEQUENCE}", rows)


def history(histories: Mapping[str, Iterable[Mapping[str, Any]]], note: str) -> Table:
    """What was watched along training runs, by name (rows of history.json); what a run did not watch is missing.

    `note` says on what: n, T, BOS, epsilon.
    """
    found = [{"model": name, **row} for name, rows in histories.items() for row in rows]
    columns = dict.fromkeys(column for row in found for column in row)
    rows: tuple[dict[str, Cell], ...] = tuple({column: row.get(column) for column in columns} for row in found)
    return Table("Losses and sinks over training", note, rows)


def _without_length(report: Report) -> str:
    one = report.protocol
    return f"{one.model}: n={one.sequences}, BOS {one.bos}, {one.dtype}, {one.source}"
