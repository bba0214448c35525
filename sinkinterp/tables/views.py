"""What the methods of a report show: `summary`, `heads`, `plot` and a notebook's card."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from html import escape

import plotly.graph_objects as go
from torch import Tensor

from ..checks import nearest
from ..errors import InputError
from ..measurement.instruments import INSTRUMENTS
from ..measurement.report import Report
from ..metrics.maps import PATTERNS
from ..plots import curves, heatmaps, massive, norms, qk
from ..plots.grid import heads_svg
from ..table import Table
from .heads import sinks_by_head, top_heads
from .norms import norms_by_kind
from .positions import sinks_by_epsilon, sinks_by_position
from .qk import qk_means_by_head
from .residual import massive_by_block
from .series import sinks_by_length
from .summary import sink_summary
from .verdict import sink_verdict

MOST_MAPS = 4  # heads whose maps are drawn side by side


@dataclass(frozen=True)
class Summary:
    """One sentence, and the table behind it. It prints as both."""

    sentence: str
    table: Table

    def __repr__(self) -> str:
        return self.sentence

    def __str__(self) -> str:
        return f"{self.sentence}\n\n{self.table.to_markdown()}"

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.sentence)}</p>{self.table._repr_html_()}"


@dataclass(frozen=True)
class View:
    """A figure of a report. instrument: the name of the one that must have been measured; empty for none."""

    draw: Callable[[Report, float], go.Figure]
    instrument: str = ""


def summary(report: Report, epsilon: float = 0.3) -> Summary:
    """Whether there is a sink on the first token: a sentence and a table."""
    return Summary(sink_verdict(report, epsilon), sink_summary(report, epsilon))


def heads(report: Report, epsilon: float = 0.3) -> Table:
    """Every head, the one that looks at the first token most first."""
    table = sinks_by_head(report, epsilon)
    return replace(table, rows=top_heads(table, len(table.rows)).rows)


def plot(report: Report, view: str = "sinks", epsilon: float = 0.3) -> go.Figure:
    """The figure of that name. Raises InputError for another name, and where the report lacks an instrument."""
    if not isinstance(view, str) or view not in VIEWS:
        raise InputError(f"there is no view {view!r:.40}{nearest(view, VIEWS)}; views: {', '.join(VIEWS)}")
    chosen = VIEWS[view]
    needed = INSTRUMENTS[chosen.instrument] if chosen.instrument else ()
    if not all(map(report.has, needed)):
        call = f"instruments=si.measurement.instruments.{chosen.instrument}"
        raise InputError(f"the view {view!r} needs what {chosen.instrument} measures; measure with {call}")
    return chosen.draw(report, epsilon)


def card(report: Report, epsilon: float = 0.3) -> str:
    """What a notebook shows of a report: the verdict, the grid of heads, the summary. All text is escaped."""
    if 0 not in report.positions:
        return f"<p><b>{escape(repr(report))}</b></p>"
    shown = summary(report, epsilon)
    grid = heads_svg(sinks_by_head(report, epsilon))
    return f"<p>{escape(shown.sentence)}</p>{grid}{shown.table._repr_html_()}"


def _maps(report: Report, epsilon: float) -> go.Figure:
    """Mean maps of the heads that look at the first token most."""
    strongest = heads(report, epsilon)
    patterns = report.extra(PATTERNS).nanmean(0).numpy()
    places = [(int(row["layer"] or 0), int(row["head"] or 0)) for row in strongest.rows[:MOST_MAPS]]
    maps = {f"layer {i}, head {head}": patterns[report.attention_layers.index(i), head] for i, head in places}
    return heatmaps.attention_maps(maps, "Where the heads with the strongest sinks look", strongest.note)


def _over_lengths(report: Report, epsilon: float) -> go.Figure:
    """Sink_1 of the sequences of each length."""
    lengths = (report.tokens >= 0).sum(1)
    if len(lengths.unique()) < 2:
        raise InputError(
            f"all sequences have T={report.protocol.length}, so there is nothing to draw over T; measure texts of "
            "different lengths, or draw si.tables.sinks_by_length([report, ...]).plot()"
        )
    parts = [_rows(report, lengths == length, int(length)) for length in lengths.unique()]
    return curves.over_length(sinks_by_length(parts))


def _rows(report: Report, chosen: Tensor, length: int) -> Report:
    """A report of some of the sequences, which have this length."""
    values = {name: value[chosen] for name, value in report.tensors().items() if name in vars(report)}
    protocol = replace(report.protocol, sequences=int(chosen.sum()), length=length, shortest=None)
    return replace(report, **values, protocol=protocol, extras={})


VIEWS: Mapping[str, View] = {
    "sinks": View(lambda report, epsilon: heatmaps.heads_overview(sinks_by_head(report, epsilon))),
    "positions": View(lambda report, epsilon: curves.by_position(sinks_by_position(report, epsilon))),
    "epsilons": View(lambda report, epsilon: curves.over_epsilon(sinks_by_epsilon(report, epsilon))),
    "norms": View(lambda report, epsilon: norms.by_kind(norms_by_kind(report, epsilon))),
    "angles": View(lambda report, epsilon: qk.by_layer(qk_means_by_head(report, epsilon)), "GEOMETRY"),
    "massive": View(lambda report, epsilon: massive.by_block(massive_by_block(report, epsilon)), "MASSIVE"),
    "lengths": View(_over_lengths),
    "maps": View(_maps, "MAPS"),
}
