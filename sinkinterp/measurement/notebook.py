"""What a notebook shows of a report."""

from html import escape

from .statistics import Statistics


def notebook_html(report: Statistics) -> str:
    """The report's model and protocol, and Sink_1 beside its null where position 0 was measured."""
    title = f"<b>Report</b> {escape(f'{report.protocol.model}: {report.protocol.line()}')}"
    if 0 not in report.positions:
        return title
    return f"{title}<br>Sink_1 at epsilon 0.3: {report.sink()} (uniform attention: {report.null_sink_rate():.3g})"
