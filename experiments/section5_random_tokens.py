"""Section 5: with more random tokens at the beginning of every sequence, the sink disappears."""

from functools import partial

from sinkinterp.runs.experiment import Rule
from sinkinterp.table import ALPHA_THERE, MODEL, NULL_THERE, STRONGEST, Table

from .shared.changed_text import on_changed_text
from .shared.rules import MARGIN, has_no_sink, has_sink, in_most_seeds, setup
from .shared.study import study
from .shared.tasks import RandomAt

STOPS = (4, 8)  # random tokens from the first on; the paper says "more" and gives no number


def _nowhere(table: Table, model: str) -> tuple[bool | None, str]:
    """Whether no position that several queries see is above its null by the margin."""
    rows = table.where(**{MODEL: model}).records()
    excess = [float(row[ALPHA_THERE] or 0) - float(row[NULL_THERE] or 0) for row in rows]
    without = sum(each <= MARGIN for each in excess)
    places = ", ".join(f"{row[STRONGEST]} ({each:+.2f})" for row, each in zip(rows, excess, strict=True))
    return in_most_seeds(without, len(rows)), f"strongest position, and alpha there over its null: {places}"


EXPERIMENT = study(
    claim="With more random tokens at the beginning of every sequence there is no sink, on no position.",
    arms=(
        on_changed_text("as drawn", sink=18.18),
        *(on_changed_text(f"random at 1 to {stop}", RandomAt(0, stop)) for stop in STOPS),
    ),
    rules=(
        setup(has_sink("as drawn")),
        *(has_no_sink(f"random at 1 to {stop}") for stop in STOPS),
        *(
            Rule(
                f"no position has a sink with random tokens at 1 to {stop}",
                partial(_nowhere, model=f"random at 1 to {stop}"),
            )
            for stop in STOPS
        ),
    ),
    note="held-out sequences are changed like those for training; the rules were written before the runs",
)
