"""The note with the protocol that stands under every table."""

from ..measurement.report import Report
from ..metrics.bootstrap import BY_SEQUENCE


def note(report: Report, epsilon: float) -> str:
    """The protocol that stands under every table."""
    return f"{report.protocol.model}: {report.protocol.line()}, epsilon={epsilon}; {BY_SEQUENCE}"
