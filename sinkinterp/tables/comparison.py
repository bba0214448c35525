"""What changed between two reports?"""

from ..errors import InputError
from ..measurement.report import Report
from ..metrics.bootstrap import difference, estimate, estimate_cells
from ..metrics.sink import check_epsilon
from ..plots.columns import QUANTITY
from ..table import Table
from .note import protocol_note
from .quantities import quantities


def compare(before: Report, after: Report, epsilon: float = 0.3) -> Table:
    """The summary of two reports and what changed: sequence by sequence where both read the same texts.

    Elsewhere it is the change of means, and the note says so. Raises InputError for what is no report.
    """
    for report in (before, after):
        if not isinstance(report, Report):
            raise InputError(f"compare takes two reports, which si.measure returns; got a {type(report).__name__}")
    check_epsilon(epsilon)
    old, new = ({q.name: q.values for q in quantities(report, epsilon)} for report in (before, after))
    paired = _is_paired(before, after)
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
    pairing = _pairing(before, after) if paired else "different sequences, change of means"
    note = f"before: {protocol_note(before, epsilon)}; after: {protocol_note(after, epsilon)}; {pairing}"
    return Table("What changed?", note, rows)


def _is_paired(before: Report, after: Report) -> bool:
    """Whether sequence i of both is of one text: the hash of the texts is one, or unknown and the tokens are equal."""
    hashes = {report.protocol.source_sha256 for report in (before, after)}
    if len(before.tokens) != len(after.tokens) or len(hashes) > 1:
        return False
    return hashes != {""} or before.tokens.equal(after.tokens)


def _pairing(before: Report, after: Report) -> str:
    are_same = before.tokens.equal(after.tokens)
    return f"the same {'sequences' if are_same else 'texts as other tokens'}, change by sequence"
