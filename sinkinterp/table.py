"""Table: rows of numbers and words, with the words that say how they were measured. Measuring makes it, views draw it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
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

    def where(self, **equal: Cell) -> "Table":
        """The rows whose cells equal those given."""
        rows = tuple(row for row in self.rows if all(row[name] == cell for name, cell in equal.items()))
        return Table(self.title, self.note, rows)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready copy."""
        return {"title": self.title, "note": self.note, "rows": [dict(row) for row in self.rows]}


def save_json(path: Path, plain: Mapping[str, Any] | Sequence[Any]) -> None:
    """Writes JSON to `path` in one step: the file is whole or as it was."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(json.dumps(plain, indent=1))
    draft.replace(path)
