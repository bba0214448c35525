"""What a report shows, and what a subject does, as functions of a model and a text."""

from collections.abc import Callable, Sequence
from typing import Any

from ..backends.load import subject_of
from ..checks import InputError, keywords, whole_number, whole_numbers
from ..data.tokens import TokensLike
from ..interventions.edit import Edits
from ..metrics.instruments import INSTRUMENTS
from ..report.norms import RESIDUAL
from ..report.report import NAMED
from ..table import BLOCK, HEAD, LAYER, QUANTITY, Table
from .measure import ModelLike, measure


def _table_of(view: str, quantity: str | None = None) -> Callable[..., Table]:
    """A function that measures what a view of `Report.plot` needs and returns its table, of one quantity or of all."""

    def tabulate(
        model: ModelLike,
        tokens: TokensLike | Any = None,
        layers: int | Sequence[int] | None = None,
        heads: int | Sequence[int] | None = None,
        *,
        top: int | None = None,
        epsilon: float = 0.3,
        edits: Edits = (),
    ) -> Table:
        """The table of one view of a model on tokens that `measure` takes, of some layers or blocks, and heads.

        `top` keeps the first rows. Raises InputError as `measure` does, and where the table has no such rows.
        """
        subject, shown = subject_of(model), NAMED[view]
        report = measure(subject, tokens, edits=edits, instruments=INSTRUMENTS.get(shown.instrument, ()))
        table = shown.table(report, epsilon, subject.label)
        table = table if quantity is None else table.where(**{QUANTITY: quantity})
        for column, chosen in ((LAYER if LAYER in table.columns else BLOCK, layers), (HEAD, heads)):
            if chosen is not None:
                numbers = whole_numbers(chosen, column)
                table = table.with_rows(row for row in table if row.get(column) in numbers)
        if not len(table):
            raise InputError(f"{table.title!r} has no such layers and heads; leave layers= and heads= out")
        return table if top is None else table.head(whole_number(top, "top", 1))

    tabulate.__name__ = quantity or view
    return keywords(tabulate)


def _figure_of(table: Callable[..., Table]) -> Callable[..., Any]:
    """A function that draws what `table` returns."""
    return lambda *args, **named: table(*args, **named).plot()


def _method(name: str) -> Callable[..., Any]:
    """A method of a subject as a function that takes the model first."""

    @keywords
    def called(model: ModelLike, *args: Any, **named: Any) -> Any:
        return getattr(subject_of(model), name)(*args, **named)

    return called


massive, norms, angles, heads = map(_table_of, ("massive", "norms", "angles", "sinks"))
keys, values, residuals = (_table_of("norms", quantity) for quantity in ("key", "value", RESIDUAL))
plot_massive, plot_norms, plot_angles, plot_heads = map(_figure_of, (massive, norms, angles, heads))
attention, run_with_cache, generate = map(_method, ("attention", "run_with_cache", "generate"))
