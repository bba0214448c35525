"""The answer before the numbers, and how they were made after them."""

from math import isnan

from ..measurement.report import Report
from ..metrics.bootstrap import Estimate
from ..metrics.sink import sink_positions, sink_rate
from ..table import Cell, Table
from .heads import strongest_head
from .positions import FOLLOWERS

SOME = 0.01  # the sink rate from which a first token is said to have a sink
SHARE = 0.1  # of the heads that must look at a later position for the verdict to name it


def sink_verdict(report: Report, epsilon: float = 0.3) -> str:
    """One sentence: has the first token a sink, how strong, against which null, and where; then slot, later positions.

    A sink is claimed where Sink_1 is 1% or more and the lower end of its interval exceeds uniform attention's rate. One
    sequence has no interval; there Sink_1 itself has to exceed it.
    """
    rate, null = report.sink(0, epsilon), report.null_sink_rate(0, epsilon)
    claim = "has a sink" if _exceeds(rate, null) else "has no sink to speak of"
    layer, head = strongest_head(report)
    i = report.attention_layers.index(layer)
    alpha, uniform = (values[:, i, head].nanmean().item() for values in (report.alpha(), report.null_alpha()))
    of_first = (
        f"{report.protocol.model} {claim} on its first token: {_percent(rate)} of all "
        f"(sequence, layer, head) give it more than {epsilon:g} of their attention, where uniform attention would make "
        f"it {null:.1%}; the head that looks at it most, {head} of layer {layer}, gives it "
        f"{alpha:.2f} (uniform: {uniform:.2f})"
    )
    return f"{of_first}{_of_slot(report, epsilon)}{_of_later_positions(report, epsilon)}."


def protocol_table(report: Report, epsilon: float = 0.3) -> Table:
    """How the numbers of a report were made, line by line."""
    values = vars(report.protocol) | {"epsilon": epsilon}
    versions = ", ".join(f"{name} {number}" for name, number in report.protocol.versions.items())
    values |= {"edits": "; ".join(report.protocol.edits) or "none", "versions": versions}
    rows: tuple[dict[str, Cell], ...] = tuple(
        {"what": name.replace("_", " "), "value": str(value)}
        for name, value in values.items()
        if value not in (None, "")
    )
    return Table("Protocol", "", rows)


def _exceeds(rate: Estimate, null: float) -> bool:
    return rate.mean >= SOME and (rate.mean if isnan(rate.low) else rate.low) > null


def _percent(rate: Estimate) -> str:
    return f"{rate.mean:.1%}" + ("" if isnan(rate.low) else f" [{rate.low:.1%}, {rate.high:.1%}]")


def _of_slot(report: Report, epsilon: float) -> str:
    rate = report.slot_rate(epsilon)
    if rate is None or report.slot_null is None:
        return ""
    null = sink_rate(report.slot_null, epsilon).mean().item()
    claim = "takes the sink" if _exceeds(rate, null) else "takes none either"
    return f"; the slot, a column that is no token, {claim}: Sink_* is {rate.mean:.1%} (uniform: {null:.1%})"


def _of_later_positions(report: Report, epsilon: float) -> str:
    last = report.protocol.length - FOLLOWERS
    columns = sink_positions(report.importance, report.null, epsilon, SHARE).tolist()
    later = sorted(p for p in (report.positions[i] for i in columns) if 0 < p <= last)
    return f"; later positions above epsilon in a tenth of the heads: {', '.join(map(str, later))}" if later else ""
