"""Table: rows of numbers and text, how they were measured, and the function that draws them."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial, wraps
from html import escape
from importlib import import_module
from inspect import isroutine, signature
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, overload

from .checks import InputError, choice, instance_of, is_whole, whole_number

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
INPUT = "input"
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
STATE = "state"  # of a training: whether it ended well
STRONGEST = "strongest position"  # from 1
ALPHA_THERE = "alpha there"  # at the strongest position
NULL_THERE = "null there"
ONSET = "onset step"
_PLACES = {LAYER, HEAD, KV_HEAD, BLOCK, POSITION, "sequence", "query", "key", "token", "channel", "step"}


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


class Row(dict[str, Any]):
    """The cells of a row by their columns, which also answer to the words that people use for them."""

    def __missing__(self, word: str) -> Any:
        if column := column_meant(word, self):
            return self[column]
        raise KeyError(f"{word!s:.60}; the columns are {', '.join(self)}")

    if not TYPE_CHECKING:

        def __getattr__(self, word: str) -> Any:
            if column := column_meant(word, self):
                return self[column]
            raise AttributeError(f"a row has no {word!r}; the columns are {', '.join(self)}")


class Column(list[Any]):
    """The cells of a column, top to bottom, which also have what a Series of pandas has."""

    def to_pandas(self) -> Any:
        """The cells as a Series."""
        import pandas

        return pandas.Series([*self])

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name[0] == "_":
                raise AttributeError(name)
            return getattr(self.to_pandas(), name)


def _of_cells(name: str) -> Callable[..., Any]:
    """An operation of columns. With a number, a text or an array it works on each cell, else on the list."""

    def operation(self: Column, *other: Any) -> Any:
        is_equality = name in ("__eq__", "__ne__") and type(other[0]) is Column
        if not is_equality and all(isinstance(x, str | float | int) or hasattr(x, "dtype") for x in other):
            return getattr(self.to_pandas(), name)(*other)
        return getattr(list, name, lambda *_: NotImplemented)(self, *other)

    return operation


_OPERATIONS = "eq ne lt le gt ge add radd sub rsub mul rmul truediv rtruediv neg abs round"
for _name in _OPERATIONS.split():
    setattr(Column, f"__{_name}__", _of_cells(f"__{_name}__"))


@dataclass(frozen=True, repr=False)
class Table:
    """Rows with the same columns.

    note: the protocol: n, T, epsilon, BOS, dtype. draw: makes the plotly figure of the table; None where it has none.
    """

    title: str
    note: str
    rows: tuple[Mapping[str, Cell], ...]
    draw: Callable[["Table"], Any] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        what = "rows are a tuple of dictionaries, of cells by column"
        for row in instance_of(self.rows, Sequence, what):
            if instance_of(row, Mapping, what).keys() != self.rows[0].keys():
                raise InputError(f"the rows of {self.title!r} have different columns; give each the same")

    def __repr__(self) -> str:
        return f"<Table {self.title!r}: {len(self.rows)} rows of {', '.join(self.columns) or 'nothing'}>"

    def __str__(self) -> str:
        return self.to_markdown()

    def __iter__(self) -> Iterator[Mapping[str, Cell]]:
        return map(Row, self.rows)

    def __array__(self, *_: Any, **__: Any) -> NoReturn:  # matplotlib hides a ValueError
        raise TypeError("a table is not an array; table.to_pandas() is a DataFrame")

    def _quantities(self) -> list[str]:
        """The columns of numbers that say no place."""
        return [name for name in self.columns if name not in _PLACES and not self.is_text(name)] or ["COLUMN"]

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.rows)

    def __bool__(self) -> bool:
        return True  # also without rows, as a title and a note are there

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """A column, or what a DataFrame of the table has; its means and the like are of the columns of numbers."""
            if "rows" not in vars(self) or name[0] == "_":  # a copy has no rows yet
                raise AttributeError(f"a table has no attribute {name!r}")
            if column := column_meant(name, self.columns):
                return self.column(column)
            frame = self.to_pandas()
            if not hasattr(frame, name):
                raise AttributeError(f"a table has no attribute {name!r}")
            value = getattr(frame, name)
            is_of_numbers = isroutine(value) and "numeric_only" in signature(value).parameters
            return partial(value, numeric_only=True) if is_of_numbers else value

    @overload
    def __getitem__(self, key: str) -> list[Cell]: ...
    @overload
    def __getitem__(self, key: slice) -> "Table": ...
    @overload
    def __getitem__(self, key: int) -> Mapping[str, Cell]: ...
    def __getitem__(self, key: Any) -> Any:
        """A column by its name, a row by its number (from 0, or from the end), or some rows as a table.

        Raises InputError for a name that no column has, and for anything else; IndexError where there is no such row.
        """
        if isinstance(key, str):
            return self.column(column_meant(key, self.columns) or key)
        if isinstance(key, list):
            return self.to_pandas()[key]
        if isinstance(key, slice):
            return self.with_rows(self.rows[key])
        if str(getattr(key, "dtype", "")).endswith("bool") and len(key) == len(self):
            return self.with_rows(row for row, is_kept in zip(self.rows, key, strict=True) if is_kept)
        if not is_whole(key):
            raise InputError(f"table[0] is a row, table['name'] a column; got {key!r:.40}")
        if not -len(self) <= key < len(self):
            raise IndexError(f"there is no row {key}; rows count from 0, and {self!r}")
        return Row(self.rows[key])

    def head(self, n: int = 5) -> "Table":
        """The first `n` rows, as a table."""
        return self[: whole_number(n, "n", 0)]

    def largest(self, n: int | None = 5, by: str = "") -> "Table":
        """The `n` rows (None: all) with the largest numbers of a column; by default, of the first with a quantity."""
        sizes = self._quantities()
        by = column_meant(by, self.columns) or by or sizes[0]
        ranked = sorted(self.rows, key=lambda row: float(row[by] or 0), reverse=True) if by in sizes else self.rows
        self._check_columns(by)
        return self.with_rows([*ranked][: None if n is None else whole_number(n, "n", 1)])

    def plot(self, x: str | None = None, y: str | None = None, kind: str = "line", **named: Any) -> Any:
        """The plotly figure that shows this table, or of columns `x` and `y` that of plotly.express: "line" or "bar".

        `named` are words of plotly.express. Raises InputError where the table has no figure.
        """
        if x is not None or y is not None:
            from plotly import express

            frame = self.to_pandas()
            chosen = {word: column_meant(given, frame) or given for word, given in (("x", x), ("y", y)) if given}
            draw = choice(kind, {name: getattr(express, name) for name in ("line", "bar", "scatter")}, "kind of figure")
            return draw(frame, **chosen, **named)
        if self.draw is None:
            raise InputError(f"{self.title!r} has no figure; print it, or take table.to_pandas() and draw that")
        if kind != "line" or named.keys() - {"title"}:
            raise InputError("words of plotly.express go with columns: table.plot(x='layer', y='alpha_1', kind='bar')")
        figure = self.draw(self)
        return figure.update_layout(title_text=named["title"]) if named else figure

    def save(self, path: Path | str, **how: Any) -> Path:  # nnsight gives every object a `save`
        """Writes the table, or its figure, as `si.save` does, and returns the path."""
        return Path(import_module("sinkinterp.pages.report").save(self, path, **how))

    def show(self) -> None:
        """Shows the figure in a notebook or a browser; prints a table that has none."""
        if self.draw is None:
            print(self)
        else:
            self.plot().show()

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, left to right."""
        return tuple(self.rows[0]) if self.rows else ()

    def column(self, name: str) -> list[Cell]:
        """The cells of one column, top to bottom. Raises InputError for a name that no column has."""
        self._check_columns(name)
        return Column(row[name] for row in self.rows)

    def numbers(self, name: str) -> list[float]:
        """The cells of a column of numbers; a missing one is NaN. Raises InputError for a column of texts."""
        if self.is_text(name):
            raise InputError(f"{name!r} holds texts; take table.column({name!r})")
        return [float("nan") if cell is None else float(cell) for cell in self.column(name)]

    def where(self, **equal: Cell) -> "Table":
        """The rows whose cells equal those given. Raises InputError for a name that no column has."""
        self._check_columns(*equal)
        return self.with_rows(row for row in self.rows if all(row[name] == cell for name, cell in equal.items()))

    def with_rows(self, rows: Iterable[Mapping[str, Cell]]) -> "Table":
        """A copy with other rows of the same columns."""
        return replace(self, rows=tuple(rows))

    def _check_columns(self, *names: str) -> None:
        for name in names if self.rows else ():
            holder = next((column for row in self.rows for column, cell in row.items() if cell == name), "")
            if holder and name not in self.columns:
                raise InputError(f"{name!r} is a cell of column {holder!r}; write table.where({holder}={name!r})")
            choice(name, self.rows[0], f"column of {self.title!r}")

    def is_text(self, name: str) -> bool:
        """Whether a column holds text rather than numbers."""
        return any(isinstance(cell, str) for cell in self.column(name))

    def display_rows(self) -> tuple[dict[str, str], ...]:
        """The rows as text for people; a quantity and its interval share one cell."""
        with_interval = {name for name in self.columns if low_of(name) in self.columns}
        ends = {end(name) for name in with_interval for end in (low_of, high_of)}
        names = [name for name in self.columns if name not in ends]
        return tuple(
            {name: _estimate(row, name) if name in with_interval else _text(row[name]) for name in names}
            for row in self.rows
        )

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready copy; a number that JSON cannot hold (NaN, infinity) is null.

        Numbers of numpy and torch become those of Python. Raises InputError for a cell that is not a text or a number.
        """
        rows = [{name: _plain(cell, name) for name, cell in row.items()} for row in self.rows]
        return {"title": self.title, "note": self.note, "rows": rows}

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> "Table":
        """The inverse of `to_dict`, through JSON or not; null stays a missing cell. Raises InputError otherwise."""
        rows = plain.get("rows") if isinstance(plain, Mapping) else None
        if not isinstance(rows, Sequence) or not {"title", "note"} <= plain.keys():
            raise InputError(f"a table is read from its title, note and rows; got {plain!r:.40}")
        return Table(plain["title"], plain["note"], tuple(rows))

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame, with title and note in its `attrs`; "sink rate" is its column sink_rate."""
        return self.as_written().rename(columns=identifier)

    def as_written(self) -> Any:
        """As `to_pandas`, with the names of the columns as files have them."""
        frame = _frames()([dict(row) for row in self.rows])
        frame.attrs = {"title": self.title, "note": self.note}
        return frame

    def to_csv(self, path: Path | str | None = None, index: bool = False, **named: Any) -> str | None:
        """The rows as CSV text; with a path, they are written there instead, over the file of that name."""
        return self.as_written().to_csv(path, index=index, **named)

    def to_html(self) -> str:
        """The rows as an HTML table without title and note. All text is escaped."""
        classes = {name: ' class="word"' if self.is_text(name) else "" for name in self.columns}
        rows = self.display_rows()
        head = "".join(f"<th{classes[name]}>{escape(name)}</th>" for name in (rows[0] if rows else ()))
        body = "".join(
            "<tr>" + "".join(f"<td{classes[name]}>{escape(text)}</td>" for name, text in row.items()) + "</tr>"
            for row in rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def to_latex(self, **how: Any) -> str:
        """The table in LaTeX, with numbers of three places; the document takes the package booktabs."""
        given: dict[str, Any] = {"index": False, "float_format": "%.3f", "escape": True, "na_rep": "", **how}
        return str(self.to_pandas().to_latex(**given))

    def to_markdown(self) -> str:
        """Title, rows and note in Markdown."""
        rows = self.display_rows()
        head = [[*rows[0]], ["---"] * len(rows[0])] if rows else []
        lines = [*head, *(list(row.values()) for row in rows)]
        cells = [" | ".join(on_one_line(cell).replace("|", "\\|") for cell in line) for line in lines]
        told = [f"# {on_one_line(self.title)}", "", *(f"| {line} |" for line in cells), "", visible(self.note), ""]
        return "\n".join(told)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return f"<b>{escape(self.title)}</b>{self.to_html()}<small>{escape(self.note)}</small>"


def identifier(column: str) -> str:
    """The name of a column as Python's names are written."""
    return re.sub(r"\W+", "_", str(column)).strip("_")


def column_meant(word: Any, columns: Iterable[str]) -> str:
    """The one of the columns that a word means; empty if it means none."""
    named = {identifier(column): column for column in columns if isinstance(column, str)}
    own = identifier(word) if isinstance(word, str) else ""
    return named.get(own, "")


@cache
def _frames() -> Any:
    """The DataFrame whose columns also answer to the words that people use for them."""
    import pandas

    class Frame(pandas.DataFrame):
        """Columns also answer to the words that people use for them."""

        @property
        def _constructor(self) -> Any:
            return Frame

    def meaning(name: str) -> Callable[..., Any]:
        of_pandas = getattr(pandas.DataFrame, name)

        @wraps(of_pandas)
        def called(self: Any, *args: Any, **named: Any) -> Any:
            def meant(word: Any) -> Any:
                if isinstance(word, list):
                    return [meant(each) for each in word]
                return word if not isinstance(word, str) or word in self.columns else column_meant(word, self) or word

            try:
                return of_pandas(self, *map(meant, args), **{key: meant(value) for key, value in named.items()})
            except KeyError as error:
                names = ", ".join(map(str, self.columns))
                raise KeyError(f"{error.args[0]!s:.60}; the columns are {names}") from None

        return called

    for name in ("__getitem__", "sort_values", "pivot", "pivot_table", "groupby", "nlargest", "nsmallest", "set_index"):
        setattr(Frame, name, meaning(name))
    return Frame


Sequence.register(Table)  # pandas makes a frame of the rows of a sequence


def on_one_line(text: str) -> str:
    """The text with line ends and other control characters as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def visible(text: str) -> str:
    """The text with all control characters but line ends as escapes."""
    return "\n".join(map(on_one_line, text.split("\n")))


def _plain(cell: Any, column: str) -> Cell:
    value = cell.item() if getattr(cell, "ndim", None) == 0 else cell
    instance_of(value, str | float | int | None, f"a cell of column {column!r} is a text, a number or None")
    return None if isinstance(value, float) and not isfinite(value) else value


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
