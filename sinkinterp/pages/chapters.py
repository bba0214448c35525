"""Chapters of the book of experiments: what is kept of each, as JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..runs.rules import Outcome, Verdict
from ..table import Cell, Table

NO_VERDICT = "No verdict: scale smoke only checks the path."


@dataclass(frozen=True)
class Chapter:
    """What the book says of one experiment.

    provenance: how the numbers were made: command, scale, versions, commit, machine, seconds.
    """

    name: str
    summary: str
    table: Table
    verdicts: Sequence[Verdict]
    provenance: Mapping[str, Cell]

    @property
    def scale(self) -> str:
        """The scale at which the numbers were made."""
        return str(self.provenance.get("scale", ""))

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready copy: the table's title, note and rows, and beside them verdicts and provenance."""
        verdicts = [asdict(verdict) for verdict in self.verdicts]
        return {
            **self.table.to_dict(),
            "name": self.name,
            "summary": self.summary,
            "verdicts": verdicts,
            "provenance": dict(self.provenance),
        }

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> "Chapter":
        """The inverse of `to_dict`."""
        verdicts = [Verdict(v["claim"], Outcome(v["outcome"]), v["reason"]) for v in plain["verdicts"]]
        return Chapter(plain["name"], plain["summary"], Table.from_dict(plain), verdicts, plain["provenance"])


def chapters_in(folder: Path) -> list[Chapter]:
    """The chapters whose numbers lie in a folder, by name. Raises InputError for a file that is damaged."""
    chapters = []
    for file in sorted(filter(Path.is_file, folder.glob("*.json"))):  # a pipe of that name would never end
        try:
            plain = json.loads(file.read_text(encoding="utf-8"))
            if isinstance(plain, dict) and "verdicts" in plain:
                chapters.append(Chapter.from_dict(plain))
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(f"{file} is damaged: {error}; remove it, or reproduce it again") from error
    return chapters
