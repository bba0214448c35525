"""Exhibits: tables of what instruments measured, and where each is shown.

A file of tables ends with its EXHIBITS; the terminal, the JSON file and the page pick them up from there.
"""

from collections.abc import Callable
from dataclasses import dataclass

import plotly.graph_objects as go

from ..measurement.report import Report
from ..metrics.metric import Metric
from ..table import Table

TokenText = Callable[[int], str]  # from a token id to its text
Tabulate = Callable[[Report, float, TokenText], Table]  # from a report, epsilon and the text of tokens


@dataclass(frozen=True)
class Exhibit:
    """A table, shown wherever its metric was measured.

    in_terminal: makes of the table what the terminal shows; None leaves it out. in_json: whether the JSON file holds
    it. on_page: whether the page has a section with it. heading: that of the section; empty for the table's title.
    figure: what the section shows; None for the table itself.
    """

    metric: Metric
    table: Tabulate
    in_terminal: Callable[[Table], Table] | None = None
    in_json: bool = False
    on_page: bool = False
    heading: str = ""
    figure: Callable[[Table], go.Figure] | None = None


def whole(table: Table) -> Table:
    """The table as it is, for `in_terminal`."""
    return table
