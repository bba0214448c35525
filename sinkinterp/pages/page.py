"""One self-contained page of figures, tables and captions. It holds plotly.js once, and requests nothing."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from ..plots.theme import DARK, LEGEND_Y, caption_of, translation
from ..table import Table
from .document import STYLE, Scripts, asset, document, glossary, in_script, safe_in_script

PAGE_STYLE = STYLE + asset("page.css")
LONG = 4  # sections from which a page has a table of contents


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
    shown = list(sections)
    content = "\n".join(_section(section, f"s{i}") for i, section in enumerate(shown))
    settings = in_script({"dark": dict(translation(DARK)), "plotly": plotly or ""})
    body = (
        f'<h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p>\n{contents(s.title for s in shown)}\n{content}\n'
        f'{glossary()}\n<script type="application/json" id="settings">{settings}</script>'
    )
    drawing = asset("page.js")
    library = [] if plotly is not None or not any(section.figures for section in shown) else [get_plotlyjs()]
    return document(title, PAGE_STYLE, body, Scripts([*library, drawing], load_files=plotly is not None))


def contents(titles: Iterable[str]) -> str:
    """Links to the sections of a long page, as HTML; section i has the id s{i}."""
    items = [f'<li><a href="#s{i}">{escape(title)}</a></li>' for i, title in enumerate(titles) if title]
    return f'<nav class="contents"><ol>{"".join(items)}</ol></nav>' if len(items) >= LONG else ""


def _section(section: Section, name: str) -> str:
    figures = (_figure(figure, f"{name}f{i}") for i, figure in enumerate(section.figures))
    tables = (f'<div class="wide">{table.to_html()}</div>' for table in section.tables)
    content = "\n".join((*figures, *tables))
    return (
        f'<section id="{name}"><h2>{escape(section.title)}</h2>\n{content}\n'
        f'<p class="caption">{escape(section.caption)}</p></section>'
    )


def _figure(figure: go.Figure, name: str) -> str:
    data = safe_in_script(untitled(figure).to_json())
    buttons = "".join(f'<button data-do="{do}">{text}</button>' for do, text in _BUTTONS.items())
    return (
        f'<figure><div class="plot" id="{name}"></div>'
        f'<script type="application/json" class="figure">{data}</script>'
        f'<div class="tools">{buttons}</div><figcaption>{escape(caption_of(figure))}</figcaption></figure>'
    )


_BUTTONS = {"whole": "Whole figure", "png": "Save PNG", "svg": "Save SVG"}
_IN_LEGEND = ("scatter", "bar", "box")  # kinds of traces that the legend above a figure names


def untitled(figure: go.Figure) -> go.Figure:
    """A copy without its title: the section's heading says the same."""
    named = [trace for trace in figure.data if trace.type in _IN_LEGEND and trace.showlegend is not False]
    top = 75 if len(named) > 1 else 60 if figure.layout.annotations else 35  # room for a legend, for titles of panels
    copy = go.Figure(figure).update_layout(title=None, margin={"t": top})
    if copy.layout.legend.y == LEGEND_Y and copy.layout.height:  # above the titles of panels, however low they are
        copy.layout.legend.y = 1 + 26 / (copy.layout.height - top - (copy.layout.margin.b or 80))
    return copy
