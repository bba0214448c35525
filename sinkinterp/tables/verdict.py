"""The answer before the numbers, and how they were made after them."""

from math import isnan

from ..measurement.report import Report
from ..metrics.bootstrap import Estimate, estimate
from ..metrics.sink import sink_positions, sink_rate
from ..table import Cell, Table
from .heads import strongest_head
from .note import public_name
from .positions import FOLLOWERS

SOME = 0.01  # the sink rate from which a first token is said to have a sink
MARGIN = 1.5  # times uniform attention's mean importance: what one text, which has no interval, must show
SHARE = 0.1  # of the heads that must look at a later position for the verdict to name it


def sink_verdict(report: Report, epsilon: float = 0.3) -> str:
    """Two sentences: has the first token a sink, how strong, beside uniform attention; then slot, later positions.

    A sink of the model is claimed where Sink_1 is 1% or more and exceeds uniform attention's rate, and the mean
    importance of the first token exceeds that under uniform attention. With several sequences, "exceeds" means that
    the interval lies above; one sequence has no interval, and there the mean has to be `MARGIN` times as large. Where
    only the rate exceeds, some heads have a sink.
    """
    rate, null = report.sink(0, epsilon), report.null_sink_rate(0, epsilon)
    alpha, uniform = (estimate(values.nanmean((1, 2))) for values in (report.alpha(), report.null_alpha()))
    layer, head = strongest_head(report)
    i = report.attention_layers.index(layer)
    strongest, of_uniform = (values[:, i, head].nanmean().item() for values in (report.alpha(), report.null_alpha()))
    is_one = report.protocol.sequences == 1
    unit = "(layer, head)" if is_one else "(sequence, layer, head)"
    return (
        f"{public_name(report.protocol.model)} {_claim(_exceeds(rate, null), _mean_exceeds(alpha, uniform))}"
        f"{', in this one text' if is_one else ''}: it receives {_share(alpha)} of the attention, mean over heads "
        f"(uniform attention: {_share(uniform)}), and {_percent(rate)} of all {unit} give it more than {epsilon:g} "
        f"(uniform: {null:.1%}). The head that looks at it most, {head} of layer {layer}, gives it {strongest:.2f} "
        f"(uniform: {of_uniform:.2f}){_of_slot(report, epsilon)}{_of_later_positions(report, epsilon)}."
    )


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


def _claim(rate_exceeds: bool, mean_exceeds: bool) -> str:
    if rate_exceeds and mean_exceeds:
        return "has a sink on its first token"
    if rate_exceeds:
        return "has a sink on its first token in some heads only, and none in the mean"
    return "has no sink to speak of on its first token"


def _mean_exceeds(alpha: Estimate, uniform: Estimate) -> bool:
    if isnan(alpha.low):
        return alpha.mean >= MARGIN * uniform.mean
    return alpha.low > (uniform.mean if isnan(uniform.high) else uniform.high)


def _share(value: Estimate) -> str:
    has_interval = not isnan(value.low) and f"{value.low:.2f}" != f"{value.high:.2f}"
    return f"{value.mean:.2f}" + (f" [{value.low:.2f}, {value.high:.2f}]" if has_interval else "")


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
