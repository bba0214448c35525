"""What every table shares: estimates as cells, and the note with the protocol."""

from ..metrics.intervals import Estimate
from ..report import Report
from ..table import Cell

BY_SEQUENCE = "95% bootstrap interval over sequences"


def note(report: Report, epsilon: float) -> str:
    """The protocol that stands under every table."""
    return f"{report.protocol.model}: {report.protocol.line()}, epsilon={epsilon}; {BY_SEQUENCE}"


def cells(name: str, value: Estimate) -> dict[str, Cell]:
    """An estimate as three cells: `name`, `name low`, `name high`."""
    return {name: value.mean, f"{name} low": value.low, f"{name} high": value.high}
