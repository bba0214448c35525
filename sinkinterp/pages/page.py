"""Pages: the frame from Jinja2 templates with its content security policy, and pages of figures, tables and captions.

A page is one self-contained file, which requests nothing. All pages go through `document`. Templates escape each text;
only `Markup` is taken as HTML.
"""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import plotly.graph_objects as go
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.io.json import to_json_plotly
from plotly.offline import get_plotlyjs

from ..plots.theme import DARK, LEGEND_Y, LIGHT, caption_of, translation
from ..table import Table

FOLDER = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Scripts:
    """The scripts of a page.

    inline: run at the end of the page, in this order. added: texts that these may add as scripts later.
    load_files: whether they may load scripts from files. ask_server: whether they may ask the page's own server.
    """

    inline: Sequence[str] = ()
    added: Sequence[str] = ()
    load_files: bool = False
    ask_server: bool = False

    def policy(self) -> str:
        """The content security policy: these scripts run and no others; nothing else is fetched."""
        digests = (hashlib.sha256(script.encode()).digest() for script in (*self.added, *self.inline))
        hashes = [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]
        loaded = ["'strict-dynamic'"] if self.load_files else []
        allowed = " ".join([*hashes, *loaded]) or "'none'"
        asked = ["connect-src 'self'"] if self.ask_server else []
        fixed = ["style-src 'unsafe-inline'", "img-src data: blob:", "base-uri 'none'", "form-action 'none'"]
        return "; ".join(["default-src 'none'", f"script-src {allowed}", *asked, *fixed])


def document(title: str, body: Markup, styles: Sequence[str | Path] = (), scripts: Scripts = Scripts()) -> str:
    """A page as HTML text. It ends in the glossary, whose words it explains. `styles` are names of assets."""
    scripts = replace(scripts, inline=[*scripts.inline, asset("shared/terms.js")])
    style = "\n".join(map(asset, ("style.css", *styles)))
    frame = TEMPLATES.get_template("document.html")
    return frame.render(title=title, style=style, body=body, scripts=scripts)


def rendered(template: str | Path, **values: Any) -> Markup:
    """The HTML of a template of `templates/`, such as "page.html", or of one at a path."""
    return Markup(TEMPLATES.from_string(asset(template)).render(values))


def asset(name: str | Path) -> str:
    """The text of a file of `templates/`, such as "page.css" or "atlas/head.js", or of one at a path."""
    return (FOLDER / name).read_text(encoding="utf-8")


_NAMES = {str: "string", int: "number", float: "number", bool: "boolean"}


def declared(kind: Any) -> Any:
    """A type in JSON: a name; [type] for a list; [type, type] for a pair; {"*": type} for a mapping; a record."""
    if is_dataclass(kind):
        return {name: declared(hint) for name, hint in get_type_hints(kind).items()}
    if get_origin(kind) is dict:
        return {"*": declared(get_args(kind)[1])}
    if get_origin(kind) in (list, tuple):
        return [declared(part) for part in get_args(kind)]
    return _NAMES[kind]


@dataclass(frozen=True)
class Section:
    """A heading, figures and tables, and a caption under them."""

    title: str
    caption: str = ""
    figures: Sequence[go.Figure] = ()
    tables: Sequence[Table] = ()

    @staticmethod
    def of(table: Table, heading: str = "") -> "Section":
        """The figure of a table, whose caption holds the note; the table itself where it has none."""
        if table.draw is None:
            return Section(heading or table.title, table.note, tables=[table])
        return Section(heading or table.title, figures=[table.plot()])


def page(title: str, lead: str | Sequence[str], sections: Iterable[Section], plotly: str | None = None) -> str:
    """The page as HTML text. All text that comes from data is escaped.

    `lead` is a paragraph, or several. `plotly` is the path of a file with plotly.js, seen from the page. Without it the
    page holds plotly.js itself.
    """
    paragraphs = [lead] if isinstance(lead, str) else lead
    body = rendered("page.html", title=title, lead=paragraphs, sections=list(sections))
    return with_figures(title, body, plotly)


def with_figures(
    title: str,
    body: Markup,
    plotly: str | None = None,
    styles: Sequence[str | Path] = (),
    scripts: Sequence[str | Path] = (),
) -> str:
    """A page with the scripts that draw its figures, if it has any; `plotly` as for `page`.

    styles, scripts: names of the assets that this page has beside those of all pages.
    """
    library = [get_plotlyjs()] if plotly is None and 'class="figure"' in body else []
    settings = {"dark": translation(DARK), "plotly": plotly or ""}
    figured = rendered("figured.html", body=body, settings=settings)
    run = [*library, *map(asset, ("page.js", *scripts))]
    return document(title, figured, ["page.css", *styles], Scripts(run, load_files=plotly is not None))


_IN_LEGEND = ("scatter", "bar", "box")  # kinds of traces that the legend above a figure names


def untitled(figure: go.Figure) -> go.Figure:
    """A copy without its title, for a section whose heading says the same."""
    named = [trace for trace in figure.data if trace.type in _IN_LEGEND and trace.showlegend is not False]
    has_legend = len(named) > 1 and figure.layout.showlegend is not False
    top = 75 if has_legend else 60 if figure.layout.annotations else 35  # room for a legend, for titles of panels
    copy = go.Figure(figure).update_layout(title=None, margin={"t": top})
    if any(axis.scaleanchor for axis in copy.select_yaxes()):  # squares do not grow into the room of the title
        copy.layout.height -= figure.layout.margin.t - top
    if copy.layout.legend.y == LEGEND_Y and copy.layout.height:  # above the titles of panels, however low they are
        copy.layout.legend.y = 1 + 26 / (copy.layout.height - top - (copy.layout.margin.b or 80))
    return copy


SHOWN = 180  # letters of a caption that stand on the page; the rest unfolds


def folded(caption: str) -> tuple[str, str]:
    """A caption in two: the parts that stand on the page, about two lines, and the rest."""
    parts = caption.split("; ")
    shown = next((n for n in range(len(parts), 1, -1) if len("; ".join(parts[:n])) <= SHOWN), 1)
    return "; ".join(parts[:shown]), "; ".join(parts[shown:])


TEMPLATES = Environment(
    loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
TEMPLATES.globals |= {"light": LIGHT, "dark": DARK}
TEMPLATES.filters |= {"caption_of": caption_of, "folded": folded, "untitled": untitled}
TEMPLATES.policies |= {"json.dumps_function": to_json_plotly, "json.dumps_kwargs": {"engine": "json"}}
