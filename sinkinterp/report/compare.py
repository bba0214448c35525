"""Several reports side by side: before and after, by kind of text, by length of the sequences."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..metrics import estimates
from ..metrics.sinks import check_epsilon
from ..plots.theme import colour, error_bars, sweep_figure, themed
from ..table import ALPHA_1, QUANTITY, SINK_1, VALUE_RATIO, Cell, Table, high_of, low_of
from .readings import Readings, protocol_note
from .summary import Quantity, main_sink, quantities

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
    rows = [row(name) for name in old if name in new]
    title = "What changed?"
    begins = [" first" in report.protocol.bos for report in (before, after)]
    if begins[0] != begins[1]:
        numbers = dict(zip((*names, "change"), (*map(float, begins), begins[1] - float(begins[0])), strict=True))
        rows.insert(0, dict.fromkeys(rows[0]) | {QUANTITY: "begins with BOS (1: yes)", **numbers})
        name = names[begins.index(True)]
        title += f' Of the two, "{name}" alone begins with BOS: read both with bos="never", or "always"'
    return Table.of(title, "; ".join((*said, pairing)), rows, changes)


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
    return themed(figure, table.title, caption=table.note)


def _is_paired(before: Readings, after: Readings) -> bool:
    """Tells if sequence i of both is of one text, by the hash of the texts, or by the tokens if that is unknown."""
    hashes = {report.protocol.source_sha256 for report in (before, after)}
    if len(before.tokens) != len(after.tokens):
        return False
    return before.tokens.equal(after.tokens) if "" in hashes else len(hashes) == 1


def _change(old: Quantity, new: Quantity, paired: bool) -> estimates.Estimate:
    if old.is_rate:
        return estimates.change_of_rates(old.values, new.values, paired)
    return estimates.difference(old.values, new.values, paired).within(estimates.changes_of(old.ends))


def sinks_by(column: str, reports: Mapping[str, Readings], epsilon: float = 0.3, title: str = "Sinks") -> Table:
    """A row per report, by its name in this column: Sink_1 beside its null, alpha_1 and the value-norm ratio."""

    def row(name: str, report: Readings) -> dict[str, Cell]:
        return {
            column: name,
            **estimates.estimate_cells(SINK_1, report.sink_rate(0, epsilon)),
            "null rate": report.null_sink_rate(0, epsilon),
            **estimates.mean_cells(ALPHA_1, report.alpha().mean((1, 2)), estimates.SHARES),
            **estimates.mean_cells(VALUE_RATIO, report.value_ratio().mean((1, 2)), estimates.SIZES),
            "n": report.protocol.sequences,
        }

    rows = tuple(row(name, report) for name, report in reports.items())
    protocols = {report.protocol.model: report.protocol for report in reversed([*reports.values()])}
    measured = "; ".join(f"{model}: {of_model.line('sequences', 'source')}" for model, of_model in protocols.items())
    most = max(report.protocol.sequences for report in reports.values())
    note = f"{measured}, epsilon={epsilon}; {estimates.intervals(most)}"
    return Table.of(title, note, rows, lambda table: sweep_figure(table, column, (SINK_1,)))
