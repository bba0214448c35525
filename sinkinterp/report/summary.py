"""Is there a sink? The numbers that show it, in one report and in several beside each other, and a sentence."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from math import isnan

import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots
from torch import Tensor

from ..metrics import estimates
from ..metrics.estimates import REALS, SHARES, SIZES, Estimate, Range, estimate, mean_cells, rate_cells
from ..metrics.importance import check_epsilon, sink_positions, sink_rate
from ..metrics.metric import NEXT_TOKEN_LOSS, PerSequence
from ..plots.theme import colour, error_bars, sweep_figure, themed
from ..table import ALPHA_1, NULL, QUANTITY, SINK_1, VALUE_RATIO, Cell, Table, high_of, low_of
from .heads import followed, heads_svg, sinks_by_head
from .readings import Readings, TokenText, protocol_note, public_name

SOME = 0.01  # the sink rate from which a first token is said to have a sink
MARGIN = 1.5  # times uniform attention's mean importance: what one text, which has no interval, must show
SHARE = 0.1  # of the heads that must look at a later position for the verdict to name it


@dataclass(frozen=True)
class Quantity:
    """A number per sequence, and its nulls: under uniform attention; by bias, mask and sink logits alone.

    is_telling: whether it says what no other row says. is_rate: whether it counts heads. ends: the range of its values.
    """

    name: str
    values: PerSequence
    null: float | None = None
    bias_null: float | None = None
    is_telling: bool = True
    is_rate: bool = False
    ends: Range = REALS

    def cells(self, column: str) -> dict[str, Cell]:
        """The mean over sequences with its interval, as three cells of a row."""
        return rate_cells(column, self.values) if self.is_rate else mean_cells(column, self.values, self.ends)


def quantities(report: Readings, epsilon: float, places: Iterable[int] = ()) -> list[Quantity]:
    """The numbers that say whether a report shows a sink, in the order in which they are read.

    places: later positions whose rate is one of them, if it was measured.
    """
    alpha_nulls = report.null_alpha().nanmean().item(), report.bias_alpha().nanmean().item()
    has_proxies = not same_numbers(report.raw_importance, report.importance)
    off, by_block = report.off_sequence, report.residual_ratio()
    largest, values, keys = by_block[:, int(by_block.mean(0).argmax())], report.value_ratio(), report.key_ratio()
    found = [
        *(_rate_at(report, epsilon, at) for at in (0, *places) if at in report.positions),
        Quantity("alpha_1, mean over heads", report.alpha().mean((1, 2)), *alpha_nulls, ends=SHARES),
        Quantity("alpha_1 of raw weights", report.raw_alpha().mean((1, 2)), is_telling=has_proxies),
        *_of_slot(report, epsilon),
        Quantity(
            "off-sequence mass (1 - row sum), mean over heads",
            off.mean((1, 2)),
            is_telling=bool(off.abs().max() > 1e-5),
        ),
        Quantity("value-norm ratio, mean over kv heads", values.mean((1, 2)), null=1.0, ends=SIZES),
        Quantity("key-norm ratio, mean over kv heads", keys.mean((1, 2)), null=1.0, ends=SIZES),
        Quantity("residual-norm ratio, largest over blocks", largest, null=1.0, ends=SIZES),
    ]
    if report.has(NEXT_TOKEN_LOSS):
        found.append(Quantity("loss, nats per token", report.extra(NEXT_TOKEN_LOSS).nanmean(1), ends=SIZES))
    return found


def _rate_at(report: Readings, epsilon: float, at: int) -> Quantity:
    nulls = report.null_sink_rate(at, epsilon), report.bias_sink_rate(at, epsilon)
    place = f"position {at}, p{at + 1}" if at else "position 0"
    rates = sink_rate(report.alpha(at), epsilon)
    return Quantity(f"Sink_{at + 1} at epsilon {epsilon} ({place})", rates, *nulls, is_rate=True, ends=SHARES)


def same_numbers(a: Tensor, b: Tensor) -> bool:
    """Tells if two tensors of one shape hold the same numbers. NaN, of a sequence that is too short, equals NaN."""
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def _of_slot(report: Readings, epsilon: float) -> list[Quantity]:
    if report.slot_importance is None or report.slot_null is None:
        return []
    null_rate = sink_rate(report.slot_null, epsilon).mean().item()
    rates = sink_rate(report.slot_importance, epsilon)
    alpha, null = report.slot_importance.mean((1, 2)), report.slot_null.mean().item()
    return [
        Quantity(f"Sink_* at epsilon {epsilon} (slot)", rates, null_rate, is_rate=True, ends=SHARES),
        Quantity("alpha_*, mean over heads", alpha, null, ends=SHARES),
    ]


def sink_summary(report: Readings, epsilon: float = 0.3) -> Table:
    """The numbers that show a sink: sink rate, importance, and the first token's norms, each beside its null.

    A second null, of position bias, mask and learned sink logits alone, has its column where it differs.
    """
    is_biased = not same_numbers(report.bias_null, report.null)

    def row(quantity: Quantity) -> dict[str, Cell]:
        bias_null = {"null of bias alone": quantity.bias_null} if is_biased else {}
        return {QUANTITY: quantity.name, **quantity.cells("value"), NULL: quantity.null, **bias_null}

    places = {main_sink(report, epsilon)} - {0}
    rows = tuple(row(quantity) for quantity in quantities(report, epsilon, places) if quantity.is_telling)
    return Table.of("Is there a sink on the first token?", protocol_note(report, epsilon), rows)


@dataclass(frozen=True)
class Summary:
    """A sentence, and the table behind it. It prints as both. A notebook also shows the map of heads, `picture`."""

    sentence: str
    table: Table
    picture: str = ""

    def __repr__(self) -> str:
        return self.sentence

    def __str__(self) -> str:
        return f"{self.sentence}\n\n{self.table.to_markdown()}"

    def _repr_html_(self) -> str:
        """For notebooks: the sentence, the map of heads, the numbers, the protocol. All text is escaped."""
        return f"<p>{escape(self.sentence)}</p>{self.picture}{self.table._repr_html_()}"


def summary(report: Readings, epsilon: float = 0.3) -> Summary:
    """Says if the first token has a sink: a sentence, a table and a map of heads."""
    picture = heads_svg(sinks_by_head(report, epsilon))
    return Summary(sink_verdict(report, epsilon), sink_summary(report, epsilon), picture)


def sink_verdict(report: Readings, epsilon: float = 0.3, token_text: TokenText = str) -> str:
    """Two sentences: has the first token a sink, how strong, beside uniform attention; then slot, later positions.

    The model has a sink on two conditions. Sink_1 is 1% or more and exceeds uniform attention's rate. The mean
    importance of the first token exceeds that under uniform attention. With several sequences, "exceeds" means that
    the interval of the differences by sequence is above 0. One sequence has no interval, so its mean must be `MARGIN`
    times as large. If only the rate exceeds, some heads have a sink. Sequences so short that
    uniform attention too is above epsilon tell nothing by their rate; where all are, the mean decides. `token_text`
    gives token ids their text, for later sinks of one text.
    """
    at = main_sink(report, epsilon)
    rate, null = report.sink_rate(at, epsilon), report.null_sink_rate(at, epsilon)
    alphas, nulls = report.alpha(at), report.null_alpha(at)
    alpha, uniform = (estimate(x.nanmean((1, 2))).within(SHARES) for x in (alphas, nulls))
    i, head = divmod(int(alphas.nanmean(0).argmax()), alphas.shape[2])
    strongest, of_uniform = (values[:, i, head].nanmean().item() for values in (alphas, nulls))
    is_one = report.protocol.sequences == 1
    unit = "(layer, head)" if is_one else "(sequence, layer, head)"
    edits = " and ".join(f" with {edit.partition(' [')[0]}" for edit in report.protocol.edits)  # without its code
    return (
        f"{public_name(report.protocol.model)}{edits} {_claim(report, epsilon, at)}"
        f"{', in this one text' if is_one else ''}: it receives {_share(alpha)} of the attention, mean over heads "
        f"(uniform attention: {_share(uniform)}), and {rate:.1%} of all {unit} give it more than {epsilon:g} "
        f"(uniform: {null:.1%}). Head {head} of layer {report.attention_layers[i]} looks at it most: it gives "
        f"{strongest:.2f} (uniform: {of_uniform:.2f})"
        f"{_slot_clause(report, epsilon)}{_later_clause(report, epsilon, at, token_text)}."
    )


def main_sink(report: Readings, epsilon: float = 0.3) -> int:
    """The position of the sink: 0, unless the first token has none and a later position is one, the strongest then."""
    if _rate_exceeds(report, epsilon) is not False or not (later := _later_sinks(report, epsilon)):
        return 0
    return max(later, key=lambda position: report.sink_rate(position, epsilon).mean)


def protocol_table(report: Readings, epsilon: float = 0.3) -> Table:
    """How the numbers of a report were made, line by line."""
    values = vars(report.protocol) | {"epsilon": epsilon}
    versions = ", ".join(f"{name} {number}" for name, number in report.protocol.versions.items())
    values |= {"edits": "; ".join(report.protocol.edits) or "none", "versions": versions}
    told = {name.replace("_", " "): str(value) for name, value in values.items() if value not in (None, "")}
    return Table.of("Protocol", "", tuple({"what": name, "value": value} for name, value in told.items()))


def with_short_note(table: Table, report: Readings, epsilon: float = 0.3) -> Table:
    """The table with n, T, BOS, edits and epsilon in place of the whole protocol, for pages that show that once."""
    short = report.protocol.line("dtype", "attention", "source", "texts_too_short", "revision")
    note = table.note.replace(protocol_note(report, epsilon), f"{short}, epsilon={epsilon}")
    return replace(table, note=note.replace(report.protocol.line(), short))


def _claim(report: Readings, epsilon: float, at: int) -> str:
    """Says if there is a sink, at `at`."""
    if at:
        return f"has its sink on position {at} (p{at + 1}, Sink_{at + 1}), and none to speak of on its first token"
    rate_exceeds, mean_exceeds = _rate_exceeds(report, epsilon), _mean_exceeds(report)
    if rate_exceeds is None and mean_exceeds:
        return "has a sink on its first token by the mean alone, since the texts are too short for a rate"
    if rate_exceeds and mean_exceeds:
        return "has a sink on its first token"
    if rate_exceeds:
        return "has a sink on its first token in some heads only, and none in the mean"
    return "has no sink to speak of on its first token"


def _rate_exceeds(report: Readings, epsilon: float) -> bool | None:
    """Whether Sink_1 exceeds that of uniform attention; None where no sequence is long enough to tell."""
    can_tell = ~(report.null_alpha() > epsilon).flatten(1).any(1)
    if not can_tell.any():
        return None
    return _exceeds(estimate(sink_rate(report.alpha()[can_tell], epsilon)), 0.0)


def _mean_exceeds(report: Readings) -> bool:
    alpha, uniform = (values.nanmean((1, 2)) for values in (report.alpha(), report.null_alpha()))
    if len(alpha) == 1:
        return alpha.item() >= MARGIN * uniform.item()
    return estimate(alpha - uniform).low > 0


def _share(value: Estimate) -> str:
    has_interval = not isnan(value.low) and f"{value.low:.2f}" != f"{value.high:.2f}"
    return f"{value.mean:.2f}" + (f" [{value.low:.2f}, {value.high:.2f}]" if has_interval else "")


def _exceeds(rate: Estimate, null: float) -> bool:
    return rate.mean >= SOME and (rate.mean if isnan(rate.low) else rate.low) > null


def _slot_clause(report: Readings, epsilon: float) -> str:
    rate = report.slot_rate(epsilon)
    if rate is None or report.slot_null is None:
        return ""
    null = sink_rate(report.slot_null, epsilon).mean().item()
    claim = "takes the sink" if _exceeds(rate, null) else "takes none either"
    return f"; the slot, a column that is not a token, {claim}: Sink_* is {rate.mean:.1%} (uniform: {null:.1%})"


def _later_sinks(report: Readings, epsilon: float) -> list[int]:
    """The later positions that are sinks in a tenth of the heads."""
    is_followed = followed(report)[:, None, None, list(report.positions)]
    alpha, null = (values.masked_fill(~is_followed, torch.nan) for values in (report.importance, report.null))
    columns = sink_positions(alpha, null, epsilon, SHARE).tolist()
    return sorted(p for p in (report.positions[i] for i in columns) if p > 0)


def _later_clause(report: Readings, epsilon: float, at: int, token_text: TokenText) -> str:
    """Names the later positions that are sinks beside position `at`; in one text, with their tokens."""
    later = [position for position in _later_sinks(report, epsilon) if position != at]
    if not later:
        return ""
    is_one = report.protocol.sequences == 1
    names = [f"{p}, {token_text(int(report.tokens[0, p])).strip()!r}," if is_one else str(p) for p in later]
    kind = "token" if is_one else "position"
    claim = f"{kind} {names[0]} is a second sink"
    if len(later) > 1:
        claim = f"{kind}s {(' ' if is_one else ', ').join(names[:-1])} and {names[-1]} are sinks too"
    return f"; {claim} (positions from 0, in a tenth of the heads or more)"


ENDS = ("before", "after")


def compare(before: Readings, after: Readings, epsilon: float = 0.3, names: Sequence[str] = ENDS) -> Table:
    """The summary of two reports by these names, and what changed: by sequence where both read the same texts.

    Elsewhere it is the change of means, and the note says so.
    """
    check_epsilon(epsilon)
    places = sorted({main_sink(report, epsilon) for report in (before, after)} - {0})
    old, new = ({q.name: q for q in quantities(report, epsilon, places)} for report in (before, after))
    paired = _is_paired(before, after)

    def row(name: str) -> dict[str, Cell]:
        change = estimates.estimate_cells("change", _change(old[name], new[name], paired))
        return {QUANTITY: name, **old[name].cells(names[0]), **new[name].cells(names[1]), **change}

    same = "sequences" if before.tokens.equal(after.tokens) else "texts as other tokens"
    pairing = f"the same {same}, change by sequence" if paired else "different sequences, change of means"
    notes = [protocol_note(report, epsilon) for report in (before, after)]
    said = [note if note.startswith(name) else f"{name}: {note}" for name, note in zip(names, notes, strict=True)]
    both = [name for name in old if name in new and (old[name].is_telling or new[name].is_telling)]
    rows = [row(name) for name in both]
    title = "; ".join(_finding(cells, names) for cells in rows if old[str(cells[QUANTITY])].is_rate)
    begins = [" first" in report.protocol.bos for report in (before, after)]
    if begins[0] != begins[1]:
        numbers = dict(zip((*names, "change"), (*map(float, begins), begins[1] - float(begins[0])), strict=True))
        rows.insert(0, dict.fromkeys(rows[0]) | {QUANTITY: "begins with BOS (1: yes)", **numbers})
        name = names[begins.index(True)]
        title += f'. Of the two, "{name}" alone begins with BOS: read both with bos="never", or "always"'
    return Table.of(title, "; ".join((*said, pairing)), rows, changes)


def _finding(row: Mapping[str, Cell], names: Sequence[str]) -> str:
    """The fate of a rate, with its number at both ends and the interval of its change."""
    (cells,) = Table.of("", "", [row]).texts()
    (old, new), change, quantity = (cells[name] for name in names), cells["change"], cells[QUANTITY].split()[0]
    low, high = row[low_of("change")], row[high_of("change")]
    if low is None or high is None or float(low) <= 0 <= float(high):
        reason = "without an interval" if low is None else "whose interval holds 0"
        return f"{quantity}: {old} ({names[0]}), {new} ({names[1]}), change {change}, {reason}"
    verb = "rises" if float(low) > 0 else "falls"
    return f"{quantity} {verb} from {old} ({names[0]}) to {new} ({names[1]}), by {change}"


def changes(table: Table) -> go.Figure:
    """A panel per quantity: its value before and after, with intervals; from `compare`."""
    both = [name for name in table.frame if low_of(name) in table.frame and name != "change"]
    names = table.frame[QUANTITY].tolist()
    figure = make_subplots(1, len(names), subplot_titles=[str(name).replace(", ", "<br>") for name in names])
    for i, row in enumerate(table.records(), 1):
        ends = [{side("value"): row[side(end)] for side in (str, low_of, high_of)} for end in both]
        values = Table.of("", "", tuple(ends))
        bars = {"x": both, "y": values.numbers("value"), "error_y": error_bars(values, "value"), "showlegend": False}
        figure.add_bar(**bars, marker_color=[colour(0), colour(1)], row=1, col=i)
    return themed(figure, " and ".join(both), caption=table.note)


def _is_paired(before: Readings, after: Readings) -> bool:
    """Tells if sequence i of both is of one text, by the hash of the texts, or by the tokens if that is unknown."""
    hashes = {report.protocol.source_sha256 for report in (before, after)}
    if len(before.tokens) != len(after.tokens):
        return False
    return before.tokens.equal(after.tokens) if "" in hashes else len(hashes) == 1


def _change(old: Quantity, new: Quantity, paired: bool) -> Estimate:
    if old.is_rate:
        return estimates.change_of_rates(old.values, new.values, paired)
    return estimates.difference(old.values, new.values, paired).within(estimates.changes_of(old.ends))


def sinks_by(column: str, reports: Mapping[str, Readings], epsilon: float = 0.3) -> Table:
    """A row per report, by its name in this column: Sink_1 beside its null, alpha_1 and the value-norm ratio.

    The title names the smallest and the largest Sink_1.
    """

    def row(name: str, report: Readings) -> dict[str, Cell]:
        return {
            column: name,
            **estimates.estimate_cells(SINK_1, report.sink_rate(0, epsilon)),
            "null rate": report.null_sink_rate(0, epsilon),
            **mean_cells(ALPHA_1, report.alpha().mean((1, 2)), SHARES),
            **mean_cells(VALUE_RATIO, report.value_ratio().mean((1, 2)), SIZES),
            "n": report.protocol.sequences,
        }

    rows = tuple(row(name, report) for name, report in reports.items())
    protocols = {report.protocol.model: report.protocol for report in reversed([*reports.values()])}
    measured = "; ".join(f"{model}: {of_model.line('sequences', 'source')}" for model, of_model in protocols.items())
    most = max(report.protocol.sequences for report in reports.values())
    note = f"{measured}, epsilon={epsilon}; {estimates.intervals(most)}"
    ordered = Table.of("", "", rows).largest(SINK_1).texts()
    low, high = (f"{row[SINK_1]} ({row[column]})" for row in (ordered[-1], ordered[0]))
    return Table.of(f"{SINK_1}: {low} to {high}", note, rows, lambda table: sweep_figure(table, column, (SINK_1,)))
