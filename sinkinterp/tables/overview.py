"""What the terminal shows of a report."""

from ..measurement.report import Report
from ..table import Table
from .exhibits import TokenText
from .heads import sinks_by_head, top_heads
from .positions import sinks_by_token
from .registry import exhibits_of
from .summary import sink_summary


def overview_tables(report: Report, epsilon: float = 0.3, token_text: TokenText = str) -> list[Table]:
    """Is there a sink, in which heads, on which tokens, and with which massive activations: what was measured of it."""
    tables = [sink_summary(report, epsilon), top_heads(sinks_by_head(report, epsilon))]
    if len(report.positions) == report.protocol.length:
        tables.append(sinks_by_token(report, epsilon, token_text))
    for exhibit in exhibits_of(report):
        if exhibit.in_terminal is not None:
            tables.append(exhibit.in_terminal(exhibit.table(report, epsilon, token_text)))
    return [table for table in tables if table.rows]
