"""The note that stands under every table, and the names of models in it."""

import re

from ..measurement.report import Report
from ..metrics.bootstrap import BY_SEQUENCE

ONE_TEXT = "one text, so no intervals"


def protocol_note(report: Report, epsilon: float) -> str:
    """The protocol in a line: model, n, T, BOS, dtype, source, edits, epsilon; the divisor where windows matter."""
    divisor = f"; {report.protocol.divisor_note}" if report.protocol.divisor_note else ""
    name = public_name(report.protocol.model)
    return f"{name}: {report.protocol.line()}, epsilon={epsilon}; {intervals_note(report)}{divisor}"


def intervals_note(report: Report) -> str:
    """What the intervals of a report are; that there are none where it has one sequence."""
    return ONE_TEXT if report.protocol.sequences == 1 else BY_SEQUENCE


def public_name(model: str) -> str:
    """The name of a model as pages show it: of a folder on this machine, the last part of its path."""
    is_path = model.startswith(("/", "./", "../", "~")) or "\\" in model or model.count("/") > 1
    return short_name(model) if is_path else model


def short_name(model: str) -> str:
    """The last part of a model's name, for titles."""
    return next((part for part in reversed(re.split(r"[/\\]", model)) if part), model)
