"""Pages of figures, tables and captions: one self-contained file, which holds plotly.js once and requests nothing."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import plotly.graph_objects as go
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from ..plots.theme import DARK, translation
from ..table import Table
from .document import Scripts, asset, document, rendered


@dataclass(frozen=True)
class Section:
    """A heading, figures and tables, and a caption under them."""

    title: str
    caption: str
    figures: Sequence[go.Figure] = ()
    tables: Sequence[Table] = ()


@dataclass(frozen=True)
class Group:
    """Cards below one heading: a line and a section each."""

    title: str
    cards: Sequence[tuple[str, Section]]


def page(title: str, lead: str, sections: Iterable[Section], plotly: str | None = None) -> str:
    """The page as HTML text. All text that comes from data is escaped.

    `plotly` is the path of a file with plotly.js, seen from the page. Without it the page holds plotly.js itself.
    """
    body = rendered("templates/page.html", title=title, lead=lead, sections=list(sections))
    return with_figures(title, body, plotly)


def cards_page(title: str, lead: str, sections: Iterable[Section]) -> str:
    """A page of small figures. A section whose title is "group: line" is the card with this line in its group."""
    parts = ((*section.title.partition(": "), section) for section in sections)
    grouped = groupby(parts, lambda part: part[0])
    groups = [Group(name, [(line, section) for _, _, line, section in cards]) for name, cards in grouped]
    body = rendered("templates/cards.html", title=title, lead=lead, groups=groups)
    return with_figures(title, body, styles=["templates/cards.css"])


def with_figures(
    title: str, body: Markup, plotly: str | None = None, styles: Sequence[str] = (), scripts: Sequence[str] = ()
) -> str:
    """A page with the scripts that draw its figures, if it has any; `plotly` as for `page`.

    styles, scripts: names of the assets that this page has beside those of all pages.
    """
    library = [get_plotlyjs()] if plotly is None and 'class="figure"' in body else []
    settings = {"dark": translation(DARK), "plotly": plotly or ""}
    figured = rendered("templates/figured.html", body=body, settings=settings)
    run = [*library, *map(asset, ("templates/page.js", *scripts))]
    return document(title, figured, ["templates/page.css", *styles], Scripts(run, load_files=plotly is not None))
