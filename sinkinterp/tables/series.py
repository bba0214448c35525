"""Tables over a quantity that is varied: the length of sequences, optimiser steps."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..measurement.report import Report
from ..metrics.bootstrap import BY_SEQUENCE, estimate_cells
from ..plots.columns import EPSILON, LENGTH, MODEL, NULL, SINK_1
from ..table import Cell, Table

THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5)


def sinks_by_length(reports: Iterable[Report], epsilons: Sequence[float] = THRESHOLDS) -> Table:
    """Sink_1 over T for several epsilons beside uniform attention's, a report per length (Gu et al. 2025, Figure 3)."""
    reports = sorted(reports, key=lambda report: report.protocol.length)
    rows = tuple(
        {
            MODEL: report.protocol.model,
            LENGTH: report.protocol.length,
            EPSILON: epsilon,
            **estimate_cells(SINK_1, report.sink(0, epsilon)),
            NULL: report.null_sink_rate(0, epsilon),
            "n": report.protocol.sequences,
        }
        for epsilon in epsilons
        for report in reports
    )
    protocols = [report.protocol for report in reports]
    sources = "; ".join(dict.fromkeys(f"{protocol.model}: {protocol.line('length')}" for protocol in protocols))
    lengths = ", ".join(map(str, dict.fromkeys(protocol.length for protocol in protocols)))
    varied = f"T={lengths}, epsilon={', '.join(map(str, epsilons))}"
    return Table("Sink_1 over the length of sequences", f"{sources}; {varied}; {BY_SEQUENCE}", rows)


def training_history(histories: Mapping[str, Iterable[Mapping[str, Any]]], note: str) -> Table:
    """What was watched along training runs, by name (rows of history.json); what a run did not watch is missing.

    `note` says on what: n, T, BOS, epsilon.
    """
    watched = [{MODEL: name, **row} for name, rows in histories.items() for row in rows]
    columns = dict.fromkeys(column for row in watched for column in row)
    rows: tuple[dict[str, Cell], ...] = tuple({column: row.get(column) for column in columns} for row in watched)
    return Table("Losses and sinks over training", note, rows)
