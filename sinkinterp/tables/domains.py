"""Does the sink depend on the kind of text?"""

from collections.abc import Mapping

from ..measurement.report import Report
from ..metrics.bootstrap import BY_SEQUENCE, estimate, estimate_cells
from ..plots.columns import ALPHA_1, SINK_1, VALUE_RATIO
from ..table import Cell, Table


def sinks_by_domain(reports: Mapping[str, Report], epsilon: float = 0.3) -> Table:
    """The sink on many kinds of text (Gu et al. 2025, Figure 9): a row per domain, each beside its null."""

    def row(name: str, report: Report) -> dict[str, Cell]:
        return {
            "domain": name,
            **estimate_cells(SINK_1, report.sink(0, epsilon)),
            "null rate": report.null_sink_rate(0, epsilon),
            **estimate_cells(ALPHA_1, estimate(report.alpha().mean((1, 2)))),
            **estimate_cells(VALUE_RATIO, estimate(report.value_ratio().mean((1, 2)))),
            "n": report.protocol.sequences,
        }

    rows = tuple(row(name, report) for name, report in reports.items())
    protocol = next(iter(reports.values())).protocol
    measured = f"{protocol.model}: {protocol.line('sequences', 'source')}"
    return Table("Does the sink depend on the text?", f"{measured}, epsilon={epsilon}; {BY_SEQUENCE}", rows)
