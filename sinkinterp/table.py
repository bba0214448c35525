"""Table: rows of numbers and words, and how they were measured. Measuring makes it, views draw it."""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from math import isfinite
from typing import Any

Cell = str | float | int | None


@dataclass(frozen=True)
class Table:
    """Rows with the same columns. `note` is the protocol: n, T, epsilon, BOS, dtype."""

    title: str
    note: str
    rows: tuple[Mapping[str, Cell], ...]

    def __post_init__(self) -> None:
        if any(row.keys() != self.rows[0].keys() for row in self.rows):
            raise ValueError(f"the rows of {self.title!r} have different columns")

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.rows[0]) if self.rows else ()

    def column(self, name: str) -> list[Cell]:
        """The cells of one column, top to bottom."""
        return [row[name] for row in self.rows]

    def numbers(self, name: str) -> list[float]:
        """The cells of a column of numbers, missing ones as NaN."""
        return [float("nan") if cell is None else float(cell) for cell in self.column(name)]

    def where(self, **equal: Cell) -> "Table":
        """The rows whose cells equal those given."""
        rows = tuple(row for row in self.rows if all(row[name] == cell for name, cell in equal.items()))
        return Table(self.title, self.note, rows)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready copy; a number that JSON lacks (NaN, infinity) is null."""
        rows = [{name: None if _is_lacking(cell) else cell for name, cell in row.items()} for row in self.rows]
        return {"title": self.title, "note": self.note, "rows": rows}

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> "Table":
        """The inverse of `to_dict`, through JSON or not; null stays a missing cell."""
        return Table(plain["title"], plain["note"], tuple(plain["rows"]))

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame, the note in its `attrs`."""
        import pandas

        frame = pandas.DataFrame([dict(row) for row in self.rows])
        frame.attrs = {"title": self.title, "note": self.note}
        return frame

    def to_html(self) -> str:
        """The rows as an HTML table without its title and note, every word escaped."""
        mark = {name: ' class="word"' if self.is_wordy(name) else "" for name in self.columns}
        rows = self.words()
        head = "".join(f"<th{mark[name]}>{escape(name)}</th>" for name in (rows[0] if rows else ()))
        cells = ("".join(f"<td{mark[name]}>{escape(text)}</td>" for name, text in row.items()) for row in rows)
        body = "".join(f"<tr>{row}</tr>" for row in cells)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return f"<b>{escape(self.title)}</b>{self.to_html()}<small>{escape(self.note)}</small>"

    def words(self) -> tuple[dict[str, str], ...]:
        """The rows as text; a quantity and its `low` and `high` share one cell."""
        spans = {name for name in self.columns if f"{name} low" in self.columns}
        bounds = {f"{name} {end}" for name in spans for end in ("low", "high")}
        return tuple(
            {name: _cell(row, name, name in spans) for name in self.columns if name not in bounds} for row in self.rows
        )

    def is_wordy(self, name: str) -> bool:
        """Whether a column holds words rather than numbers."""
        return any(isinstance(cell, str) for cell in self.column(name))


def _is_lacking(cell: Cell) -> bool:
    return isinstance(cell, float) and not isfinite(cell)


def _cell(row: Mapping[str, Cell], name: str, with_interval: bool) -> str:
    if with_interval and row[f"{name} low"] is not None:
        return f"{_text(row[name])} [{_text(row[f'{name} low'])}, {_text(row[f'{name} high'])}]"
    return _text(row[name])


def _text(cell: Cell) -> str:
    """Three decimals for a number of ordinary size, three significant digits for others, nothing for None."""
    if cell is None:
        return ""
    if not isinstance(cell, float):
        return str(cell)
    return f"{cell:.3f}" if 1e-3 <= abs(cell) < 100 else f"{cell:.3g}"
