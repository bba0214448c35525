"""The note that stands under every table."""

from ..measurement.report import Report
from ..metrics.bootstrap import BY_SEQUENCE


def protocol_note(report: Report, epsilon: float) -> str:
    """The protocol in a line: model, n, T, BOS, dtype, source, edits, epsilon; the divisor where windows matter."""
    divisor = f"; {report.protocol.divisor_note}" if report.protocol.divisor_note else ""
    return f"{report.protocol.model}: {report.protocol.line()}, epsilon={epsilon}; {BY_SEQUENCE}{divisor}"
