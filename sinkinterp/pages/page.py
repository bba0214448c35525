"""One self-contained page of figures, tables and captions. It holds plotly.js once, and requests nothing."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from ..plots.small import thumbnail
from ..plots.theme import DARK, LEGEND_Y, caption_of, translation
from ..table import Table
from .document import STYLE, Scripts, asset, document, in_script, safe_in_script

PAGE_STYLE = STYLE + asset("page.css")
MOST_ROWS = 24  # that a table shows unfolded
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
    body = (
        f'<h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p>\n{contents(s.title for s in shown)}\n{content}\n'
    )
    return with_figures(title, body, plotly)


def with_figures(title: str, body: str, plotly: str | None = None, style: str = "", script: str = "") -> str:
    """A page whose body is HTML, with the scripts that draw its figures, if it has any; `plotly` as for `page`.

    style, script: what this page has beside the style and the scripts of all pages.
    """
    settings = in_script({"dark": dict(translation(DARK)), "plotly": plotly or ""})
    body += f'\n<script type="application/json" id="settings">{settings}</script>'
    library = [] if plotly is not None or _FIGURE not in body else [get_plotlyjs()]
    scripts = [*library, asset("page.js"), *([script] if script else [])]
    return document(title, PAGE_STYLE + style, body, Scripts(scripts, load_files=plotly is not None))


def contents(titles: Iterable[str]) -> str:
    """Links to the sections of a long page, as HTML; section i has the id s{i}."""
    items = [f'<li><a href="#s{i}">{escape(title)}</a></li>' for i, title in enumerate(titles) if title]
    return f'<nav class="contents"><ol>{"".join(items)}</ol></nav>' if len(items) >= LONG else ""


def _section(section: Section, name: str) -> str:
    figures = (drawn(figure, f"{name}f{i}") for i, figure in enumerate(section.figures))
    content = "\n".join((*figures, *map(shown_table, section.tables)))
    return (
        f'<section id="{name}"><h2>{escape(section.title)}</h2>\n{content}\n'
        f'<p class="caption">{escape(section.caption)}</p></section>'
    )


def shown_table(table: Table) -> str:
    """A table as HTML; one of many rows is folded."""
    wide = f'<div class="wide">{table.to_html()}</div>'
    rows = len(table.rows)
    return wide if rows <= MOST_ROWS else f"<details><summary>All {rows} rows</summary>{wide}</details>"


def drawn(figure: go.Figure, name: str) -> str:
    """The place of a figure in the body of a page, with its buttons and its caption. `name` is its id on the page."""
    buttons = "".join(f'<button data-do="{do}">{text}</button>' for do, text in _BUTTONS.items())
    return (
        f'<figure><div class="plot" id="{name}"></div>{_data(untitled(figure))}'
        f'<div class="tools">{buttons}</div><figcaption>{escape(caption_of(figure))}</figcaption></figure>'
    )


def thumbnail_of(figure: go.Figure, name: str, height: int | None = None) -> str:
    """The place of a small copy of a figure, which does not answer to the pointer. `name` is its id on the page.

    height: in pixels, where the copy shall not choose its own by the names that it shows.
    """
    small = thumbnail(figure, height)
    place = f'<span class="plot small" id="{name}" style="height: {small.layout.height}px"></span>'
    return f'<span class="thumbnail">{place}{_data(small)}</span>'


_FIGURE = '<script type="application/json" class="figure">'


def _data(figure: go.Figure) -> str:
    return f"{_FIGURE}{safe_in_script(figure.to_json())}</script>"


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
