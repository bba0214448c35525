"""What a report shows of itself: sentences, tables and figures. Layers above this one make them.

The package's door says where they come from, so that `report.plot()` works and this layer imports nothing above it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ..table import Table

if TYPE_CHECKING:
    from .statistics import Statistics


@runtime_checkable
class Views(Protocol):
    """The functions behind the methods of a report."""

    def summary(self, report: "Statistics", epsilon: float) -> Any: ...

    def heads(self, report: "Statistics", epsilon: float) -> Table: ...

    def plot(self, report: "Statistics", view: str, epsilon: float) -> Any: ...

    def card(self, report: "Statistics") -> str: ...


_LOADERS: list[Callable[[], Any]] = []


def come_from(loader: Callable[[], Any]) -> None:
    """Names the function that returns the `Views`, which is called when a report is first shown."""
    _LOADERS[:] = [loader]


def views() -> Views:
    """The functions that show a report."""
    return _LOADERS[0]()
