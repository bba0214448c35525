"""What every table shares: estimates as cells, and the note with the protocol."""

import math

from ..metrics.intervals import Estimate
from ..report import Report
from ..table import Cell

BY_SEQUENCE = "95% bootstrap interval over sequences"


def note(report: Report, epsilon: float) -> str:
    """The protocol that stands under every table."""
    return f"{report.protocol.model}: {report.protocol.line()}, epsilon={epsilon}; {BY_SEQUENCE}"


def cells(name: str, value: Estimate) -> dict[str, Cell]:
    """An estimate as three cells: `name`, `name low`, `name high`; the last two empty where there is no interval."""
    ends = {f"{name} low": value.low, f"{name} high": value.high}
    return {name: value.mean, **{end: None if math.isnan(x) else x for end, x in ends.items()}}
