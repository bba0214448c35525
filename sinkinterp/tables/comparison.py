"""What changed between two reports?"""

from ..measurement.report import Report
from ..metrics.bootstrap import difference, estimate, estimate_cells
from ..plots.columns import QUANTITY
from ..table import Table
from .note import protocol_note
from .quantities import quantities


def compare(before: Report, after: Report, epsilon: float = 0.3) -> Table:
    """The summary of two reports and what changed: sequence by sequence where both saw the same tokens."""
    old, new = ({q.name: q.values for q in quantities(report, epsilon)} for report in (before, after))
    paired = before.protocol.source_sha256 == after.protocol.source_sha256
    rows = tuple(
        {
            QUANTITY: name,
            **estimate_cells("before", estimate(old[name])),
            **estimate_cells("after", estimate(new[name])),
            **estimate_cells("change", difference(old[name], new[name], paired)),
        }
        for name in old
        if name in new
    )
    pairing = "the same sequences, change by sequence" if paired else "different sequences, change of means"
    note = f"before: {protocol_note(before, epsilon)}; after: {protocol_note(after, epsilon)}; {pairing}"
    return Table("What changed?", note, rows)
