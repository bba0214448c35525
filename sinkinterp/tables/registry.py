"""All exhibits, in the order in which they are shown."""

from collections.abc import Iterator

from ..measurement.report import Report
from . import heads, massive, positions, qk, residual
from .exhibits import Exhibit

EXHIBITS = (
    *heads.EXHIBITS,
    *qk.EXHIBITS,
    *residual.EXHIBITS,
    *massive.EXHIBITS,
    *positions.EXHIBITS,
)


def exhibits_of(report: Report) -> Iterator[Exhibit]:
    """The exhibits whose metrics were measured."""
    return (exhibit for exhibit in EXHIBITS if report.has(exhibit.metric))
