"""Report: what was read of one model on some tokens, and how. A value that can be shown, saved, loaded and compared.

`VIEWS` says what can be shown of it, and where: in the terminal, on the page, by `report.plot`. A new
table needs one line there. Its figure is the table's own.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from typing import get_type_hints

import plotly.graph_objects as go
from jaxtyping import jaxtyped
from torch import Tensor

from ..checks import InputError, choice, different_numbers, whole_number
from ..metrics.importance import PATTERNS
from ..metrics.metric import AnyMetric
from ..metrics.qk import QK_ANGLES
from ..metrics.residuals import MASSIVE_ENTRIES, TOP_ENTRIES, UPDATE_RANK
from ..table import ALPHA_1, BLOCK, HEAD, LAYER, POSITION, Table
from . import heads as of_heads, norms
from .maps import maps_of_strongest
from .readings import Readings, TokenText
from .summary import Summary, sink_summary, summary

SHAPES = get_type_hints(Readings)


@dataclass(frozen=True, eq=False, repr=False)
class Report(Readings):
    """Readings (its fields, statistics and files) with what people look at first."""

    def __post_init__(self) -> None:
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        with jaxtyped("context"):  # in which a name in the types of the fields stands for one size
            wrong = [name for name, value in tensors.items() if not isinstance(value, SHAPES[name])]
        sizes = (len(self.tokens), len(self.attention_layers), len(self.positions))
        wrong += [name for name in ("importance",) if (*self.importance.shape[:2], self.importance.shape[-1]) != sizes]
        wrong += [name for name, value in self.extras.items() if len(value) != len(self.tokens)]
        if wrong:
            raise InputError(f"its {wrong[0]} has another shape than the rest; take the file or dictionary as it was")

    def __repr__(self) -> str:
        n, n_layers, n_heads, _ = self.importance.shape
        sizes = f"{n_layers} layers x {n_heads} heads, T={self.protocol.lengths}, n={n}"
        null = f"{self.null_sink_rate():.3f} under uniform attention" if 0 in self.positions else ""
        sink = f", Sink_1 = {self.sink_rate()} at epsilon 0.3, {null}" if null else ""
        return f"<Report of {self.protocol.model}: {sizes}{sink}>"

    def summary(self, epsilon: float = 0.3) -> Summary:
        """Says if the first token is a sink: one sentence and the table behind it, which print together."""
        return summary(self, epsilon)

    def heads(self, top: int | None = None, epsilon: float = 0.3) -> Table:
        """Every head, or the `top` strongest, with its importance of the first position, the strongest sink first."""
        return of_heads.sinks_by_head(self, epsilon).largest(
            ALPHA_1, None if top is None else whole_number(top, "top", 1)
        )

    def plot(self, view: str = "sinks", epsilon: float = 0.3, token_text: TokenText = str) -> go.Figure:
        """A plotly figure: the grid of sinks, or another view.

        The others are "positions", "epsilons", "norms", "writes", "angles", "massive" and "attention".
        `token_text` gives token ids their text, such as `subject.label`. Raises InputError, which names the
        instrument to measure with, where the report does not hold what a view needs.
        """
        return choice(view, NAMED, "view").table(self, epsilon, token_text).plot()

    def _repr_html_(self) -> str:
        """What a notebook shows: the summary. All text is escaped."""
        return self.summary()._repr_html_() if 0 in self.positions else f"<p><b>{escape(repr(self))}</b></p>"


MakeTable = Callable[[Readings, float, TokenText], Table]  # from a report, epsilon and the text of tokens


@dataclass(frozen=True)
class View:
    """A table of a report, and where it is shown. A page shows its figure, or the table where it has none.

    name: that of `report.plot`; empty where it draws none. needs: the metrics that must have been measured.
    in_terminal: whether the terminal shows it, of a table of heads the strongest. heading: that of its section on the
    page; empty leaves it out. fits: whether it says something of a report.
    """

    table: MakeTable
    name: str = ""
    needs: Sequence[AnyMetric] = ()
    in_terminal: bool = False
    heading: str = ""
    fits: Callable[[Readings], bool] = lambda report: True


def _plain(table: Callable[[Readings, float], Table]) -> MakeTable:
    """A function that makes a table without the text of tokens, as one that is given it."""
    return lambda report, epsilon, word: table(report, epsilon)


def _has(least: int | None, report: Readings) -> bool:
    """Tells if at least `least` positions were measured; None: all."""
    return len(report.positions) >= (least or report.protocol.length)


_norms = _plain(lambda report, epsilon: norms.residual_norms_by_block({report.protocol.model: report}))
VIEWS = (
    View(_plain(sink_summary), in_terminal=True),
    View(_plain(of_heads.sinks_by_head), "sinks", in_terminal=True, heading="Heads"),
    View(_plain(of_heads.sinks_by_position), "positions", heading="Positions", fits=partial(_has, 2)),
    View(_plain(of_heads.sinks_by_epsilon), "epsilons", heading="Thresholds"),
    View(of_heads.sinks_by_token, in_terminal=True, fits=partial(_has, None)),
    View(norms.norms_by_kind, "norms", heading="Norms by kind of token"),
    View(_norms, "residuals", heading="Norm of the first token's residual"),
    View(_plain(of_heads.writes_by_head), "writes", (UPDATE_RANK,), True, heading="What heads write"),
    View(_plain(of_heads.score_gaps_by_head), "angles", (QK_ANGLES,), True, heading="Angle or length?"),
    View(_plain(norms.massive_by_block), "massive", (MASSIVE_ENTRIES,), True, heading="Massive activations"),
    View(norms.largest_entries, needs=(TOP_ENTRIES,), heading="Largest residual entries"),
    View(maps_of_strongest, "attention", (PATTERNS,)),
)
NAMED = {view.name: view for view in VIEWS if view.name}


def views_of(report: Readings) -> Iterator[View]:
    """The views of what was measured, in the order in which they are shown."""
    return (view for view in VIEWS if all(map(report.has, view.needs)) and view.fits(report))


def overview_tables(report: Readings, epsilon: float = 0.3, token_text: TokenText = str) -> list[Table]:
    """The tables of the terminal: the sink, its heads, its tokens, and massive activations."""
    tables = [view.table(report, epsilon, token_text) for view in views_of(report) if view.in_terminal]
    return [of_heads.top_heads(table) if HEAD in table.frame else table for table in tables if len(table.frame)]


def chosen_rows(
    table: Table,
    layers: int | Sequence[int] | None = None,
    heads: Sequence[tuple[int, int]] | None = None,
    positions: int | Sequence[int] | None = None,
    top: int | None = None,
) -> Table:
    """The table with the rows of some layers or blocks, (layer, head) pairs, and positions; None keeps all.

    top: the number of rows, those with the largest alpha_1. Raises InputError where it has no
    such rows.
    """
    frame, layer = table.frame, LAYER if LAYER in table.frame else BLOCK
    given = {"layers": (layer, layers), "positions": (POSITION, positions), "heads": (HEAD, heads)}
    columns = {name: column for name, (column, wanted) in given.items() if wanted is not None}
    if absent := [name for name, column in columns.items() if column not in frame]:
        lacks = " and ".join(columns[name] for name in absent)
        raise InputError(f"{table.title!r} has no column {lacks}; leave {'=... and '.join(absent)}=... out")
    for column, numbers in ((layer, layers), (POSITION, positions)):
        if numbers is not None:
            frame = frame[frame[column].isin(different_numbers(numbers, column))]
    if heads is not None:
        frame = frame[[place in heads for place in zip(frame[layer], frame[HEAD], strict=True)]]
    if frame.empty:
        held = (f"{name} {table.frame[c].min()} to {table.frame[c].max()}" for name, c in columns.items())
        has = f"no such rows; it has {', '.join(held)}" if len(table.frame) else "no rows"
        raise InputError(f"{table.title!r} has {has}")
    chosen = replace(table, frame=frame.reset_index(drop=True))
    if top is None:
        return chosen
    if ALPHA_1 not in frame:
        raise InputError(f"{table.title!r} has no column {ALPHA_1}, whose largest are shown; leave top=... out")
    return chosen.largest(ALPHA_1, top)
