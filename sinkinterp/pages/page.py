"""One self-contained page: figures, tables and captions, plotly.js inlined once, no request to anywhere."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from ..plots.theme import DARK, LIGHT, Theme, caption_of, translation
from ..table import Table

_ROLES = ("background", "text", "quiet", "faint")


def _variables(theme: Theme) -> str:
    return f":root {{ {' '.join(f'--{role}: {getattr(theme, role)};' for role in _ROLES)} }}"


def _beside(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


_IN_DARK = f"@media screen and (prefers-color-scheme: dark) {{ {_variables(DARK)} }}"
STYLE = f"{_variables(LIGHT)}\n{_IN_DARK}\n{_beside('page.css')}"
DRESS = f"(\n{_beside('page.js')})({json.dumps(translation(DARK))});"

# plotly.js offers to send a chart, with its data, to a service of its maker
CONFIG = {"displaylogo": False, "responsive": True, "showSendToCloud": False, "plotlyServerURL": ""}


@dataclass(frozen=True)
class Section:
    """A heading, the words under it, and what is shown: figures, tables, or both."""

    title: str
    caption: str
    figures: Sequence[go.Figure] = ()
    tables: Sequence[Table] = ()


def page(title: str, lead: str, sections: Iterable[Section]) -> str:
    """The page as HTML text. Every word that comes from data is escaped."""
    body = "\n".join(_section(section, f"s{i}") for i, section in enumerate(sections))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style>'
        f'<meta name="color-scheme" content="light dark">'
        f"<script>{get_plotlyjs()}</script><script>{DRESS}</script></head>\n"
        f'<body><h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p>\n{body}\n</body></html>\n'
    )


def _section(section: Section, name: str) -> str:
    figures = (_figure(figure, f"{name}f{i}") for i, figure in enumerate(section.figures))
    tables = (f'<div class="wide">{table.to_html()}</div>' for table in section.tables)
    shown = "\n".join((*figures, *tables))
    return f'<h2>{escape(section.title)}</h2>\n{shown}\n<p class="caption">{escape(section.caption)}</p>'


def _figure(figure: go.Figure, name: str) -> str:
    drawn = untitled(figure).to_html(full_html=False, include_plotlyjs=False, div_id=name, config=CONFIG)
    return f"<figure>{drawn}<figcaption>{escape(caption_of(figure))}</figcaption></figure>"


_NAMED = ("scatter", "bar", "box")  # traces that the legend, which stands above the figure, may name


def untitled(figure: go.Figure) -> go.Figure:
    """A copy without its title, which the section's heading says already."""
    named = [trace for trace in figure.data if trace.type in _NAMED and trace.showlegend is not False]
    return go.Figure(figure).update_layout(title=None, margin={"t": 75 if len(named) > 1 else 35})
