"""One self-contained page of figures, tables and captions. It holds plotly.js once, and requests nothing."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from ..plots.theme import DARK, caption_of, translation
from ..table import Table
from .assets import asset
from .style import STYLE

PAGE_STYLE = STYLE + asset("page.css")
THEME_SCRIPT = f"(\n{asset('page.js')})({json.dumps(translation(DARK))});"

# plotly.js offers to send a chart, with its data, to a service of its maker
CONFIG = {"displaylogo": False, "responsive": True, "showSendToCloud": False, "plotlyServerURL": ""}


@dataclass(frozen=True)
class Section:
    """A heading, figures and tables, and a caption under them."""

    title: str
    caption: str
    figures: Sequence[go.Figure] = ()
    tables: Sequence[Table] = ()


def page(title: str, lead: str, sections: Iterable[Section], plotly: str | None = None) -> str:
    """The page as HTML text. All text that comes from data is escaped.

    `plotly` is the path of a file with plotly.js, from the page on; without it the page holds plotly.js itself.
    """
    library = f"<script>{get_plotlyjs()}</script>" if plotly is None else f'<script src="{escape(plotly)}"></script>'
    body = "\n".join(_section(section, f"s{i}") for i, section in enumerate(sections))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{PAGE_STYLE}</style>'
        f'<meta name="color-scheme" content="light dark">'
        f"{library}<script>{THEME_SCRIPT}</script></head>\n"
        f'<body><h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p>\n{body}\n</body></html>\n'
    )


def _section(section: Section, name: str) -> str:
    figures = (_figure(figure, f"{name}f{i}") for i, figure in enumerate(section.figures))
    tables = (f'<div class="wide">{table.to_html()}</div>' for table in section.tables)
    content = "\n".join((*figures, *tables))
    return f'<h2>{escape(section.title)}</h2>\n{content}\n<p class="caption">{escape(section.caption)}</p>'


def _figure(figure: go.Figure, name: str) -> str:
    html = untitled(figure).to_html(full_html=False, include_plotlyjs=False, div_id=name, config=CONFIG)
    return f"<figure>{html}<figcaption>{escape(caption_of(figure))}</figcaption></figure>"


_IN_LEGEND = ("scatter", "bar", "box")  # kinds of traces that the legend above a figure names


def untitled(figure: go.Figure) -> go.Figure:
    """A copy without its title: the section's heading says the same."""
    named = [trace for trace in figure.data if trace.type in _IN_LEGEND and trace.showlegend is not False]
    top = 75 if len(named) > 1 else 60 if figure.layout.annotations else 35  # room for a legend, for titles of panels
    return go.Figure(figure).update_layout(title=None, margin={"t": top})
