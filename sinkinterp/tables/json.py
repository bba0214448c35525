"""Everything that was tabulated as JSON."""

from typing import Any

from ..measurement.report import Report
from ..table import Table
from .heads import geometry, heads, writes
from .positions import grid, losses, positions
from .residual import massive, residuals
from .summary import signature

_EXTRAS = {
    "qk_angles": geometry,
    "update_rank": writes,
    "massive_entries": massive,
    "loss": losses,
}  # what a table needs -> the table


def plain(report: Report, epsilon: float = 0.3) -> dict[str, Any]:
    """The protocol, the tables, and mean importance `layer head pos`. `Report.to_dict` keeps every number."""
    tables: list[Table] = [table(report, epsilon) for table in (signature, heads, positions, grid)]
    tables += [table(report, epsilon) for needed, table in _EXTRAS.items() if report.has(needed)]
    return {
        "protocol": vars(report.protocol) | {"epsilon": epsilon},
        "tables": [table.to_dict() for table in (*tables, residuals({report.protocol.model: report}))],
        "positions": report.positions,
        "attention_layers": report.attention_layers,
        "importance": report.importance.nanmean(0).tolist(),
        "null": report.null.nanmean(0).tolist(),
    }
