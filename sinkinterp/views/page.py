"""One self-contained page: figures, tables and captions, plotly.js inlined once, no request to anywhere."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from ..table import Table

STYLE = """
body { font: 15px/1.5 system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; color: #1a1a1a;
       background: #fff; max-width: 1180px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.15rem; margin: 2.5rem 0 .3rem; }
p.caption { color: #555; font-size: .87rem; margin: .2rem 0 1rem; }
div.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .2rem .8rem .2rem 0; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }
th.word, td.word { text-align: left; }
"""


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
        f"<script>{get_plotlyjs()}</script></head>\n"
        f"<body><h1>{escape(title)}</h1><p>{escape(lead)}</p>\n{body}\n</body></html>\n"
    )


def _section(section: Section, name: str) -> str:
    figures = (
        untitled(figure).to_html(
            full_html=False, include_plotlyjs=False, div_id=f"{name}f{i}", config={"displaylogo": False}
        )
        for i, figure in enumerate(section.figures)
    )
    shown = "\n".join((*figures, *(_table(table) for table in section.tables)))
    return f'<h2>{escape(section.title)}</h2>\n{shown}\n<p class="caption">{escape(section.caption)}</p>'


def untitled(figure: go.Figure) -> go.Figure:
    """A copy without its title, which the section's heading says already."""
    return go.Figure(figure).update_layout(title=None, margin={"t": 70})


def _table(table: Table) -> str:
    rows = table.words()
    mark = {name: ' class="word"' if table.is_wordy(name) else "" for name in (rows[0] if rows else ())}
    head = "".join(f"<th{mark[name]}>{escape(name)}</th>" for name in mark)
    cells = ("".join(f"<td{mark[name]}>{escape(text)}</td>" for name, text in row.items()) for row in rows)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
