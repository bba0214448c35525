"""The rows of a report's tables that are asked for: of some layers, heads or positions, or the largest."""

from typing import Any

from ..checks import InputError, different_numbers, whole_number, whole_numbers
from ..table import ALPHA_1, BLOCK, HEAD, LAYER, POSITION, Table
from .norms import LARGEST_VALUE, largest_entries
from .readings import TokenText
from .report import Report, view_of


def rows_named(name: str, report: Report, epsilon: float, word: TokenText, **chosen: Any) -> Table:
    """The rows that `chosen_rows` keeps of a view, or of the largest entries of one layer or of the tallest block."""
    if name != "entries" and (name != "massive" or chosen.get("top") is None):
        return chosen_rows(view_of(report, name).table(report, epsilon, word), **chosen)
    blocks = [] if chosen.get("layers") is None else whole_numbers(chosen["layers"], "layer")
    block = whole_number(blocks[0], "layer", 0, report.residual_norms.shape[1] - 1) if len(blocks) == 1 else None
    chosen |= {"layers": None} if block is not None else {}
    return chosen_rows(largest_entries(report, epsilon, word, block), **chosen, by=LARGEST_VALUE)


def chosen_rows(
    table: Table, layers: Any = None, heads: Any = None, top: int | None = None, positions: Any = None, by: str = ""
) -> Table:
    """The table with the rows of some layers or blocks, (layer, head) pairs, and positions; None keeps all.

    top: only so many rows, those with the largest numbers.

    Raises InputError where it has no such rows.
    """
    layer = LAYER if LAYER in table.frame else BLOCK
    given = {"layers": (layer, layers), "positions": (POSITION, positions)}
    given = {name: (column, numbers) for name, (column, numbers) in given.items() if numbers is not None}
    rows = [
        row
        for row in table.records()
        if all(row.get(column) in different_numbers(x, column) for column, x in given.values())
        and (heads is None or (row.get(layer), row.get(HEAD)) in heads)
    ]
    given |= {} if heads is None else {"heads": (HEAD, heads)}
    if not rows:
        absent = [name for name, (column, _) in given.items() if column not in table.frame] or [*given]
        raise InputError(f"{table.title!r} has no such rows; leave {'=... and '.join(absent)}=... out")
    if top is None:
        return table.with_rows(rows)
    if (column := by or ALPHA_1) not in table.frame:
        raise InputError(f"{table.title!r} has no column {column}, whose largest are shown; leave top=... out")
    return table.with_rows(rows).largest(column, top)
