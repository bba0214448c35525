"""Report: what was read of one model on some tokens, and how. A value that can be saved, loaded and compared."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..table import Table
from . import formats
from .statistics import Statistics
from .views import views


@dataclass(frozen=True, repr=False)
class Report(Statistics):
    """Readings (its fields), their statistics, the formats that they travel in, and what people look at first."""

    def __repr__(self) -> str:
        n, n_layers, n_heads, _ = self.importance.shape
        sizes = f"{n_layers} layers x {n_heads} heads, T={self.protocol.lengths}, n={n}"
        sink = f", Sink_1 = {self.sink()} at epsilon 0.3" if 0 in self.positions else ""
        return f"<Report of {self.protocol.model}: {sizes}{sink}>"

    def summary(self, epsilon: float = 0.3) -> Any:
        """Whether the first token is a sink: one sentence and the table behind it, which print together."""
        return views().summary(self, epsilon)

    def heads(self, epsilon: float = 0.3) -> Table:
        """Every head with its importance of the first position, the strongest sink first."""
        return views().heads(self, epsilon)

    def plot(self, view: str = "sinks", epsilon: float = 0.3) -> Any:
        """A plotly figure: the grid of sinks, or another view.

        The others are "positions", "epsilons", "norms", "angles", "massive", "lengths" and "maps". Raises InputError,
        which names the instrument to measure with, where the report does not hold what a view needs.
        """
        return views().plot(self, view, epsilon)

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
        return views().card(self)
