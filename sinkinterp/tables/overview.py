"""What the terminal shows of a report."""

from ..measurement.report import Report
from ..table import Table
from .heads import geometry, heads, strongest, writes
from .positions import Word, secondary, tokens
from .residual import massive
from .summary import signature


def overview(report: Report, word: Word = str, epsilon: float = 0.3) -> list[Table]:
    """Is there a sink, in which heads, on which tokens, and with which massive activations: what was measured of it."""
    tables = [signature(report, epsilon), strongest(heads(report, epsilon))]
    if len(report.positions) == report.protocol.length:
        tables.append(tokens(report, word, epsilon))
    if report.has("qk_angles"):
        tables += [strongest(table(report, epsilon)) for table in (geometry, writes)]
    if report.has("massive_entries"):
        tables += [massive(report, epsilon), secondary(report, word, epsilon)]
    return [table for table in tables if table.rows]
