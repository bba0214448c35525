"""The tables of a report as JSON."""

from typing import Any

from ..measurement.report import Report
from .heads import sinks_by_head
from .positions import sinks_by_epsilon, sinks_by_position
from .registry import exhibits_of
from .residual import residual_norms_by_block
from .summary import sink_summary


def tables_as_json(report: Report, epsilon: float = 0.3) -> dict[str, Any]:
    """The protocol, the tables, and mean importance `layer head pos`. `Report.to_dict` keeps every number."""
    tables = [
        sink_summary(report, epsilon),
        sinks_by_head(report, epsilon),
        sinks_by_position(report, epsilon),
        sinks_by_epsilon(report, epsilon),
        *(exhibit.table(report, epsilon, str) for exhibit in exhibits_of(report) if exhibit.in_json),
        residual_norms_by_block({report.protocol.model: report}),
    ]
    return {
        "protocol": vars(report.protocol) | {"epsilon": epsilon},
        "tables": [table.to_dict() for table in tables],
        "positions": report.positions,
        "attention_layers": report.attention_layers,
        "importance": report.importance.nanmean(0).tolist(),
        "null": report.null.nanmean(0).tolist(),
    }
