"""Models of one family, from small to large, as their names say it."""

import re
from collections.abc import Mapping, Sequence

from sinkinterp.table import MODEL, Cell, Table

Rows = Sequence[Mapping[str, Cell]]
_MILLIONS = {"m": 1, "b": 1000}
_GPT2 = {"gpt2": 124.0, "gpt2-medium": 355.0, "gpt2-large": 774.0, "gpt2-xl": 1558.0}  # their names have no number


def families(table: Table) -> dict[str, Rows]:
    """The rows of base models by family, from small to large, where a family has at least two sizes."""
    found: dict[str, list[tuple[float, Mapping[str, Cell]]]] = {}
    for row in table.records():
        family, size = family_and_size(str(row[MODEL]))
        if size is not None:
            found.setdefault(family, []).append((size, row))
    return {
        family: [row for _, row in sorted(members, key=lambda member: member[0])]
        for family, members in found.items()
        if len({size for size, _ in members}) > 1
    }


def family_and_size(model: str) -> tuple[str, float | None]:
    """Returns what a name says of a model: its family, and its parameters in millions; None where it says nothing."""
    name = model.rsplit("/", 1)[-1].lower()
    if name in _GPT2:
        return "gpt2", _GPT2[name]
    match = re.fullmatch(r"(.+?)-(\d+(?:\.\d+)?)([mb])(-hf)?", name)
    return (name, None) if match is None else (match[1], float(match[2]) * _MILLIONS[match[3]])
