"""Report: what was read of one model on some tokens, and how. A value that can be shown, saved, loaded and compared."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any, get_type_hints

import plotly.graph_objects as go
from jaxtyping import jaxtyped
from torch import Tensor

from ..checks import whole_number
from ..errors import InputError
from ..guesses import Answering, keywords
from ..table import Table
from . import formats
from .heads import sinks_by_head, top_heads
from .readings import Readings, TokenText
from .summary import Summary, summary
from .views import view_of

SHAPES = get_type_hints(Readings)


@dataclass(frozen=True, repr=False, eq=False)
class Report(Readings, Answering):
    """Readings (its fields and statistics), what people look at first, and the formats that they travel in."""

    kind, parts = "report", ("protocol",)

    def __post_init__(self) -> None:
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        with jaxtyped("context"):  # in which a name in the types of the fields stands for one size
            wrong = [name for name, value in tensors.items() if not isinstance(value, SHAPES[name])]
        sizes = (len(self.tokens), len(self.attention_layers), len(self.positions))
        wrong += [name for name in ("importance",) if (*self.importance.shape[:2], self.importance.shape[-1]) != sizes]
        wrong += [name for name, value in self.extras.items() if len(value) != len(self.tokens)]
        if wrong:
            raise InputError(f"its {wrong[0]} has another shape than the rest; take the file or dictionary as it was")

    def __repr__(self) -> str:
        n, n_layers, n_heads, _ = self.importance.shape
        sizes = f"{n_layers} layers x {n_heads} heads, T={self.protocol.lengths}, n={n}"
        null = f"{self.null_sink_rate():.3f} under uniform attention" if 0 in self.positions else ""
        sink = f", Sink_1 = {self.sink()} at epsilon 0.3, {null}" if null else ""
        return f"<Report of {self.protocol.model}: {sizes}{sink}>"

    def summary(self, epsilon: float = 0.3) -> Summary:
        """Says if the first token is a sink: one sentence and the table behind it, which print together."""
        return summary(self, epsilon)

    @keywords
    def heads(self, top: int | None = None, epsilon: float = 0.3) -> Table:
        """Every head, or the `top` strongest, with its importance of the first position, the strongest sink first."""
        table = sinks_by_head(self, epsilon)
        shown = len(table.rows) if top is None else whole_number(top, "top", 1)
        return replace(table, rows=top_heads(table, shown).rows)

    @keywords
    def plot(self, view: str = "sinks", epsilon: float = 0.3, token_text: TokenText = str) -> go.Figure:
        """A plotly figure: the grid of sinks, or another view.

        The others are "positions", "epsilons", "norms", "angles", "pairs", "massive" and "attention".
        `token_text` gives token ids their text, such as `subject.label`. Raises InputError, which names the
        instrument to measure with, where the report does not hold what a view needs.
        """
        return view_of(self, view).table(self, epsilon, token_text).plot()

    def save(self, path: Path | str) -> None:
        """Writes the report to a file, whole or not at all; the suffix says in which format.

        .safetensors and .json hold every number and the protocol, and `load` reads them. .csv holds what `to_pandas`
        gives, and a last column with the file's mark. Raises InputError for another suffix, and for a file
        that sinkinterp did not write.
        """
        formats.write_file(self, path)

    @staticmethod
    def load(path: Path | str) -> "Report":
        """The report that `save` wrote to a .safetensors or .json file. Raises InputError for any other file."""
        return formats.read_file(path, Report)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready copy, with the numbers that JSON cannot hold as text; `from_dict` gives back every bit."""
        return formats.to_dict(self)

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> "Report":
        """The inverse of `to_dict`. Raises InputError for anything else."""
        return formats.from_dict(plain, Report)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The rows of `to_pandas`, which pandas.DataFrame(report) makes a frame of."""
        yield from self.to_pandas().to_dict("records")

    def to_pandas(self) -> Any:
        """One row per sequence, layer, head and position: a pandas DataFrame, without padding."""
        return formats.to_pandas(self)

    def _repr_html_(self) -> str:
        """What a notebook shows: the summary. All text is escaped."""
        return self.summary()._repr_html_() if 0 in self.positions else f"<p><b>{escape(repr(self))}</b></p>"
