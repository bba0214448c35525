"""Report: what was read of one model on some tokens, and how. A value that can be saved, loaded and compared."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import formats
from .notebook import notebook_html
from .statistics import Statistics


@dataclass(frozen=True)
class Report(Statistics):
    """Readings (its fields), their statistics, and the formats that they travel in."""

    def save(self, path: Path | str) -> None:
        """Writes the report to a .safetensors file, whole or not at all; the protocol is in its metadata."""
        formats.write_file(self, path)

    @staticmethod
    def load(path: Path | str) -> "Report":
        """The report that `save` wrote. Raises InputError for any other file."""
        return formats.read_file(path, Report)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready copy, with the numbers that JSON cannot hold as text; `from_dict` gives back every bit."""
        return formats.to_dict(self)

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> "Report":
        """The inverse of `to_dict`. Raises InputError for anything else."""
        return formats.from_dict(plain, Report)

    def to_pandas(self) -> Any:
        """One row per sequence, layer, head and position: a pandas DataFrame, without padding."""
        return formats.to_pandas(self)

    def _repr_html_(self) -> str:
        return notebook_html(self)
