"""Table: a title, a note that says how its numbers were measured, a pandas frame, and the function that draws it."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from math import isfinite
from typing import Any

import pandas
from pandas.api.types import is_numeric_dtype

from .checks import InputError, instance_of, on_one_line, visible, whole_number

Cell = str | float | int | None
NULL = "null"  # the column with what chance alone would give, beside the first quantity of a table

# names of columns that several tables and figures share
MODEL = "model"
SEED = "seed"
LAYER = "layer"
HEAD = "head"
KV_HEAD = "kv_head"  # of keys and values; several query heads share one
BLOCK = "block"
POSITION = "position"
QUANTITY = "quantity"
EPSILON = "epsilon"
LENGTH = "T"
EDIT = "edit"
REASON = "empty because"  # of a row of a model that lacks what is edited
INPUT = "input"
PLACES = (LAYER, HEAD, KV_HEAD, BLOCK, POSITION)  # what is not there is a mistake, not an empty table
TARGET = "t"  # the position that p1 is replaced by or swapped with, from 1

SINK_1 = "Sink_1"
SINK_T = "Sink_t"
SINK_RATE = "sink rate"
ALPHA_1 = "alpha_1"
VALUE_RATIO = "value ratio"
KEY_RATIO = "key ratio"
EXCESS = "alpha_1 over null"  # alpha_1 less its null
RESIDUAL_RATIO = "residual ratio"
SLOT_RATE = "Sink_*"
ALPHA_SLOT = "alpha_*"
NULL_SLOT = "null alpha_*"
ALPHA_HEAD = "alpha_1 of the strongest head"
NULL_HEAD = "its null"
LOSS = "loss"
ADDED = "added loss"
STATE = "state"  # of a training: whether it ended well
STRONGEST = "strongest position"  # from 1
ALPHA_THERE = "alpha there"  # at the strongest position
NULL_THERE = "null there"
ONSET = "onset step"
LONG_NAME = 30  # letters; a longer name of a column would make a header of many lines


def low_of(column: str) -> str:
    """The column with the lower ends of a quantity's intervals."""
    return f"{column} low"


def high_of(column: str) -> str:
    """The column with the upper ends of a quantity's intervals."""
    return f"{column} high"


def no_estimate(column: str) -> dict[str, Cell]:
    """The three cells of an estimate that does not exist."""
    return dict.fromkeys((column, low_of(column), high_of(column)))


def at_this_loss(baseline: str) -> str:
    """The column with alpha_1 of a baseline at the step of its training where its loss was that of the row's model."""
    return f"{ALPHA_1} of {baseline} at this loss"


def published(column: str) -> str:
    """The column with the value of a quantity that the paper reports."""
    return f"paper {column}"


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """A pandas frame with a title, the protocol of its numbers, and the function that makes its plotly figure.

    note: the protocol: n, T, epsilon, BOS, dtype. frame: an estimate X has its interval in the columns "X low" and
    "X high". draw: None for a table without a figure.
    """

    title: str
    note: str
    frame: pandas.DataFrame
    draw: Callable[["Table"], Any] | None = None

    @staticmethod
    def of(
        title: str, note: str, rows: Iterable[Mapping[str, Any]], draw: Callable[["Table"], Any] | None = None
    ) -> "Table":
        """The table of rows that map the names of the columns to cells: texts, numbers, or None for a missing one.

        Raises InputError unless all rows have the same columns.
        """
        given = [instance_of(row, Mapping, "rows are dictionaries, of cells by column") for row in rows]
        if any(row.keys() != given[0].keys() for row in given):
            raise InputError(f"the rows of {title!r} have different columns")
        names = given[0] if given else ()
        return Table(
            title, note, pandas.DataFrame({name: _column(name, [row[name] for row in given]) for name in names}), draw
        )

    def __repr__(self) -> str:
        first = next(iter(self.texts()), {})
        cells = ", ".join(f"{name} {text}" for name, text in first.items() if text)
        more = ", ..." * (len(self.frame) > 1)
        return f"<Table {self.title!r}: {len(self.frame)} rows{': ' * bool(cells)}{cells}{more}>"

    def __str__(self) -> str:
        return self.to_markdown()

    def __eq__(self, other: object) -> bool:
        """Tells if title, note and frame are equal. A missing cell equals a missing cell."""
        if not isinstance(other, Table):
            return NotImplemented
        return (self.title, self.note) == (other.title, other.note) and self.frame.equals(other.frame)

    def plot(self) -> Any:
        """The plotly figure of this table. Raises InputError if it has none."""
        if self.draw is None:
            raise InputError(f"{self.title!r} has no figure; print it, or draw columns of table.frame")
        return self.draw(self)

    def records(self) -> list[dict[str, Any]]:
        """The rows as dictionaries; a missing cell is None."""
        frame = self.frame.astype(object)
        rows: list[dict[str, Any]] = frame.where(frame.notna(), None).to_dict("records")
        return rows

    def numbers(self, column: str) -> list[float]:
        """The numbers of a column; a missing one is NaN. Raises KeyError for a name that no column has."""
        numbers: list[float] = self._column(column).astype(float).tolist()
        return numbers

    def with_rows(self, rows: Iterable[Mapping[str, Any]]) -> "Table":
        """The table with the same title, note and figure, and other rows, as `Table.of` takes them."""
        return Table.of(self.title, self.note, rows, self.draw)

    def largest(self, by: str, n: int | None = None) -> "Table":
        """The table of the `n` rows with the largest numbers in a column, the largest first; by default of all.

        Raises KeyError for a name that no column has.
        """
        self._column(by)
        count = None if n is None else whole_number(n, "n", 0)
        frame = self.frame.sort_values(by, ascending=False, kind="stable", ignore_index=True)
        return replace(self, frame=frame.head(count))

    def where(self, **equal: Cell) -> "Table":
        """The table of the rows whose cells equal those given; None is a missing cell.

        Raises KeyError for a name that no column has, and InputError for a layer, block, head or position that no row
        of this table has.
        """
        frame = self.frame
        for name, cell in equal.items() if len(frame) else ():
            column = self._column(name)
            is_equal = column.isna() if cell is None else column == cell
            if name in PLACES and not is_equal.any():
                there_are = ", ".join(map(str, column.dropna().unique()))
                raise InputError(f"no row has {name} {cell!r:.40}; choose from {there_are}")
            frame = frame[is_equal[frame.index]]
        return replace(self, frame=frame.reset_index(drop=True))

    def _column(self, name: str) -> pandas.Series:
        if name not in self.frame:
            raise KeyError(f"there is no column {name!r}; there are {', '.join(map(str, self.frame))}")
        return self.frame[name]

    def texts(self) -> list[dict[str, str]]:
        """The rows as text for people; a quantity and its interval share one cell."""
        names = [*map(str, self.frame)]
        with_interval = {name for name in names if low_of(name) in names}
        ends = {end(name) for name in with_interval for end in (low_of, high_of)}
        shown = [name for name in names if name not in ends]
        return [
            {name: _estimate(row, name) if name in with_interval else _text(row[name]) for name in shown}
            for row in self.records()
        ]

    def is_text(self, name: str) -> bool:
        """Whether a column holds text rather than numbers."""
        return not is_numeric_dtype(self._column(name))

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready copy; a number that JSON cannot hold (NaN, infinity) is null."""
        rows = [{name: _plain(cell) for name, cell in row.items()} for row in self.records()]
        return {"title": self.title, "note": self.note, "rows": rows}

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> "Table":
        """The inverse of `to_dict`, through JSON or not; null stays a missing cell. Raises InputError otherwise."""
        rows = plain.get("rows") if isinstance(plain, Mapping) else None
        if not isinstance(rows, Sequence) or not {"title", "note"} <= plain.keys():
            raise InputError(f"a table is read from its title, note and rows; got {plain!r:.40}")
        return Table.of(plain["title"], plain["note"], rows)

    def to_html(self) -> str:
        """The rows as an HTML table without title and note. All text is escaped."""
        kinds = {str(name): "word" if self.is_text(name) else "" for name in self.frame}
        rows = self.texts()
        heads = {name: f"{kinds[name]}{' long' * (len(name) > LONG_NAME)}".strip() for name in next(iter(rows), ())}
        head = "".join(_html_cell("th", kind, name) for name, kind in heads.items())
        cells = ("".join(_html_cell("td", kinds[name], text) for name, text in row.items()) for row in rows)
        body = "".join(f"<tr>{row}</tr>" for row in cells)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def to_latex(self) -> str:
        """The table in LaTeX, with numbers of three places; the document takes the package booktabs."""
        return str(self.frame.to_latex(index=False, float_format="%.3f", escape=True, na_rep=""))

    def to_markdown(self) -> str:
        """Title, rows and note in Markdown."""
        rows = self.texts()
        head = [[*rows[0]], ["---"] * len(rows[0])] if rows else []
        lines = [*head, *(list(row.values()) for row in rows)]
        cells = [" | ".join(on_one_line(cell).replace("|", "\\|") for cell in line) for line in lines]
        told = [f"# {on_one_line(self.title)}", "", *(f"| {line} |" for line in cells), "", visible(self.note), ""]
        return "\n".join(told)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return f"<b>{escape(self.title)}</b>{self.to_html()}<small>{escape(self.note)}</small>"


def _html_cell(tag: str, kind: str, text: str) -> str:
    """A cell of an HTML table, of class `kind` if that is not empty."""
    given = f' class="{kind}"' if kind else ""
    return f"<{tag}{given}>{escape(text)}</{tag}>"


FORMATS: Mapping[str, Callable[[Table], str]] = {
    ".csv": lambda table: csv_of(table.frame),
    ".json": lambda table: json.dumps(table.to_dict(), indent=1),
    ".md": Table.to_markdown,
    ".tex": Table.to_latex,
}


def csv_of(frame: pandas.DataFrame) -> str:
    """A frame as CSV. Texts that spreadsheets would run as formulas, such as "=1+1", begin with an apostrophe."""
    texts = {name: column for name, column in frame.items() if not pandas.api.types.is_numeric_dtype(column)}
    return frame.assign(**{name: column.map(_no_formula) for name, column in texts.items()}).to_csv(index=False)


def _no_formula(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell


def _column(name: str, cells: list[Any]) -> pandas.Series:
    """A column: whole numbers with missing ones are Int64, a column without cells is of numbers."""
    plain = [cell.item() if getattr(cell, "ndim", None) == 0 else cell for cell in cells]
    for cell in plain:
        instance_of(cell, str | float | int | None, f"a cell of column {name!r} is a text, a number or None")
    kinds = {type(cell) for cell in plain if cell is not None}
    dtype = {frozenset(): "float64", frozenset({int}): "Int64" if None in plain else "int64"}.get(frozenset(kinds))
    return pandas.Series(plain, dtype=dtype)


def with_all_columns(rows: Sequence[Mapping[str, Cell]]) -> list[dict[str, Cell]]:
    """The rows, with None in the columns that only others of them have."""
    columns: dict[str, Cell] = dict.fromkeys(name for row in rows for name in row)
    return [{**columns, **row} for row in rows]


def _plain(cell: Cell) -> Cell:
    return None if isinstance(cell, float) and not isfinite(cell) else cell


def _estimate(row: Mapping[str, Cell], name: str) -> str:
    low, high = row[low_of(name)], row[high_of(name)]
    return _text(row[name]) if low is None else f"{_text(row[name])} [{_text(low)}, {_text(high)}]"


def _text(cell: Cell) -> str:
    """Three decimals for a number of ordinary size, three significant digits for others, nothing for None."""
    if cell is None:
        return ""
    if not isinstance(cell, float):
        return str(cell)
    if 1e3 <= abs(cell) < 1e6:
        return f"{float(f'{cell:.3g}'):,.0f}"
    return f"{cell:.3f}" if 1e-3 <= abs(cell) < 100 else f"{cell:.3g}"
