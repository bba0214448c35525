"""What a report shows of itself: sentences, tables and figures. Layers above this one make them.

The package's door says where they come from, so that `report.plot()` works and this layer imports nothing above it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ..table import Table

if TYPE_CHECKING:
    from .report import Report


class Views(Protocol):
    """The functions behind the methods of a report."""

    def summary(self, report: "Report", epsilon: float) -> Any: ...

    def heads(self, report: "Report", epsilon: float) -> Table: ...

    def plot(self, report: "Report", view: str, epsilon: float) -> Any: ...

    def card(self, report: "Report") -> str: ...


_LOADERS: list[Callable[[], Any]] = []


def come_from(loader: Callable[[], Any]) -> None:
    """Names the function that returns the `Views`, which is called when a report is first shown."""
    _LOADERS[:] = [loader]


def views() -> Views:
    """The functions that show a report."""
    return _LOADERS[0]()
