"""Views: what can be shown of a report, and where: in the terminal, in the JSON file, on the page, by `report.plot`.

A new table needs one line in `VIEWS`. Its figure is the table's own.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..checks import InputError
from ..guesses import choice
from ..metrics.importance import PATTERNS
from ..metrics.instruments import INSTRUMENTS
from ..metrics.metric import NEXT_TOKEN_LOSS, AnyMetric
from ..metrics.qk import COSINE_COUNTS, QK_ANGLES
from ..metrics.residuals import COSINE_TO_FIRST, MASSIVE_ENTRIES, TOP_ENTRIES
from ..metrics.writes import UPDATE_RANK
from ..table import Table
from .heads import score_gaps_by_head, sinks_by_head, strongest_head, top_heads, writes_by_head
from .maps import maps_of_strongest
from .massive import largest_entries, massive_by_block
from .norms import norms_by_kind, residual_norms_by_block
from .positions import loss_by_position, secondary_by_token, sinks_by_epsilon, sinks_by_position, sinks_by_token
from .qk import qk_distributions, qk_means_by_head
from .readings import Readings, TokenText, of_report
from .summary import sink_summary

Tabulate = Callable[[Readings, float, TokenText], Table]  # from a report, epsilon and the text of tokens


@dataclass(frozen=True)
class View:
    """A table of a report, and where it is shown. A page shows its figure, or the table where it has none.

    name: that of `report.plot`; empty where it draws none. needs: the metrics that must have been measured.
    in_terminal: makes of the table what the terminal shows; None leaves it out. in_json: whether the JSON file holds
    it. heading: that of its section on the page; empty leaves it out. fits: whether it says something of a report.
    """

    table: Tabulate
    name: str = ""
    needs: Sequence[AnyMetric] = ()
    in_terminal: Callable[[Table], Table] | None = None
    in_json: bool = False
    heading: str = ""
    fits: Callable[[Readings], bool] = lambda report: True


def _of(table: Callable[[Readings, float], Table]) -> Tabulate:
    """A function that makes a table without the text of tokens, as one that is given it."""
    return lambda report, epsilon, word: table(report, epsilon)


def _whole(table: Table) -> Table:
    """The table as it is, for `in_terminal`."""
    return table


def _norms_of(report: Readings, epsilon: float, word: TokenText) -> Table:
    return residual_norms_by_block({report.protocol.model: report})


def _pairs_of_strongest(report: Readings, epsilon: float, word: TokenText) -> Table:
    return qk_distributions(report, *strongest_head(report), epsilon)


def _has_all_positions(report: Readings) -> bool:
    return len(report.positions) == report.protocol.length


def _has_positions(report: Readings) -> bool:
    return len(report.positions) > 1


PAIRS = "Pairs of queries and keys in the head that looks at the first token most"
VIEWS = (
    View(_of(sink_summary), in_terminal=_whole, in_json=True),
    View(_of(sinks_by_head), "sinks", in_terminal=top_heads, in_json=True, heading="Heads"),
    View(_of(sinks_by_position), "positions", in_json=True, heading="Positions", fits=_has_positions),
    View(_of(sinks_by_epsilon), "epsilons", in_json=True, heading="Thresholds"),
    View(sinks_by_token, in_terminal=_whole, fits=_has_all_positions),
    View(norms_by_kind, "norms", heading="Norms by kind of token"),
    View(_norms_of, "residuals", in_json=True, heading="Norm of the first token's residual"),
    View(_of(score_gaps_by_head), needs=(QK_ANGLES,), in_terminal=top_heads, in_json=True),
    View(_of(writes_by_head), needs=(UPDATE_RANK,), in_terminal=top_heads, in_json=True),
    View(_of(qk_means_by_head), "angles", (QK_ANGLES,), heading="Angle or length?"),
    View(_pairs_of_strongest, "pairs", (COSINE_COUNTS,), heading=PAIRS),
    View(_of(massive_by_block), "massive", (MASSIVE_ENTRIES,), _whole, in_json=True, heading="Massive activations"),
    View(largest_entries, needs=(TOP_ENTRIES,), heading="Largest residual entries"),
    View(secondary_by_token, needs=(COSINE_TO_FIRST,), in_terminal=_whole, fits=_has_all_positions),
    View(_of(loss_by_position), needs=(NEXT_TOKEN_LOSS,), in_json=True),
    View(maps_of_strongest, "attention", (PATTERNS,)),
)
NAMED = {view.name: view for view in VIEWS if view.name}


@of_report
def views_of(report: Readings) -> Iterator[View]:
    """The views of what was measured, in the order in which they are shown."""
    return (view for view in VIEWS if all(map(report.has, view.needs)) and view.fits(report))


@of_report
def view_of(report: Readings, name: str) -> View:
    """The view of that name. Raises InputError for another name, and if the report lacks a metric."""
    view = choice(name, NAMED, "view")
    if not all(map(report.has, view.needs)):
        instrument = next(key for key, metrics in INSTRUMENTS.items() if set(view.needs) <= set(metrics))
        call = f"instruments=si.measurement.instruments.{instrument}"
        raise InputError(f"the view {name!r} needs what {instrument} measures; measure with {call}")
    return view


@of_report
def overview_tables(report: Readings, epsilon: float = 0.3, token_text: TokenText = str) -> list[Table]:
    """The tables of the terminal: the sink, its heads, its tokens, and massive activations."""
    tables = [
        view.in_terminal(view.table(report, epsilon, token_text))
        for view in views_of(report)
        if view.in_terminal is not None
    ]
    return [table for table in tables if table.rows]


@of_report
def tables_as_json(report: Readings, epsilon: float = 0.3) -> dict[str, Any]:
    """The protocol, the tables, and mean importance `layer head pos`. `Report.to_dict` keeps every number."""
    tables = [view.table(report, epsilon, str) for view in views_of(report) if view.in_json]
    return {
        "protocol": vars(report.protocol) | {"epsilon": epsilon},
        "tables": [table.to_dict() for table in tables],
        "positions": report.positions,
        "attention_layers": report.attention_layers,
        "importance": report.importance.nanmean(0).tolist(),
        "null": report.null.nanmean(0).tolist(),
    }
