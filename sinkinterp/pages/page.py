"""Pages: the frame from Jinja2 templates with its content security policy, and pages of figures, tables and captions.

A page is one self-contained file, which requests nothing. All pages go through `document`. Templates escape each text;
only `Markup` is taken as HTML.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import plotly.graph_objects as go
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.io.json import to_json_plotly
from plotly.offline import get_plotlyjs

from ..checks import Frozen
from ..plots.theme import DARK, LEGEND_Y, LIGHT, MAGNITUDE, caption_of, json_ready, translation
from ..table import Table

FOLDER = Path(__file__).parent


class Scripts(Frozen):
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


def document(title: str, body: Markup, styles: Sequence[str] = (), scripts: Scripts = Scripts()) -> str:
    """A page as HTML text. It ends in the glossary, whose words it explains. `styles` are names of assets."""
    scripts = replace(scripts, inline=[*scripts.inline, asset("shared/terms.js")])
    style = "\n".join(map(asset, ("templates/style.css", *styles)))
    frame = TEMPLATES.get_template("templates/document.html")
    return frame.render(title=title, style=style, body=body, scripts=scripts)


def rendered(template: str, **values: Any) -> Markup:
    """The HTML of a template of this package, such as "templates/page.html"."""
    return Markup(TEMPLATES.get_template(template).render(values))


def asset(name: str) -> str:
    """The text of a file of this package, such as "templates/page.css" or "atlas/head.js"."""
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


class Section(Frozen):
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
    body = rendered("templates/page.html", title=title, lead=paragraphs, sections=list(sections))
    return with_figures(title, body, plotly)


def cards_page(title: str, lead: str, sections: Iterable[Section]) -> str:
    """A page of small figures. A section whose title is "group: line" is the card with this line in its group."""
    parts = ((*section.title.partition(": "), section) for section in sections)
    grouped = groupby(parts, lambda part: part[0])
    groups = [(name, [(line, section) for _, _, line, section in cards]) for name, cards in grouped]
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


HEIGHT = 190  # pixels
ROW = 15  # pixels that a name needs
LETTERS = 10  # size
MOST_NAMED = 14  # names that fit below each other
MOST_IN_LEGEND = 3
LONGEST = 30  # letters of a name
_LAID_DOWN = {"line-ew": "line-ns", "line-ew-open": "line-ns-open"}
_KEPT = (
    "type", "range", "rangemode", "tickformat", "autorange", "exponentformat", "categoryorder", "categoryarray",
)  # what makes an axis right  # fmt: skip
_CURVES = ("scatter", "bar")
_IN_LEGEND = (*_CURVES, "box")  # kinds of traces that the legend above a figure names
Plain = dict[str, Any]  # a part of a figure, as JSON holds it


def untitled(figure: go.Figure) -> go.Figure:
    """A copy without its title, for a section whose heading says the same."""
    named = [trace for trace in figure.data if trace.type in _IN_LEGEND and trace.showlegend is not False]
    top = 75 if len(named) > 1 else 60 if figure.layout.annotations else 35  # room for a legend, for titles of panels
    copy = go.Figure(figure).update_layout(title=None, margin={"t": top})
    if copy.layout.legend.y == LEGEND_Y and copy.layout.height:  # above the titles of panels, however low they are
        copy.layout.legend.y = 1 + 26 / (copy.layout.height - top - (copy.layout.margin.b or 80))
    return copy


def thumbnail(figure: go.Figure, height: int | None = None) -> go.Figure:
    """The first panel of a figure at the size of a card. Names are to the left.

    height: in pixels; without it the figure is as high as its names need. At a given height it has no legend.
    """
    plain = json_ready(figure)
    scale = plain["layout"].get("coloraxis", {})
    traces = [_flat(trace, scale) for trace in plain["data"] if trace.get("xaxis", "x") == "x"]
    layout = _layout(plain["layout"])
    names = _names(traces)
    if names:
        traces, layout = _laid_down(traces, layout, names)
    named = {trace.get("name") for trace in traces if trace["type"] in _CURVES and trace.get("showlegend") is not False}
    if not 2 <= len(named) <= MOST_IN_LEGEND:
        layout |= {"showlegend": False, "margin": layout["margin"] | {"t": 10}}
    if height is not None:
        layout |= {"height": height, "showlegend": False, "margin": layout["margin"] | {"t": 8, "b": 26}}
        layout["yaxis"] |= {"title": {"text": ""}, "showticklabels": ROW * len(names) <= height - 34}
    return go.Figure({"data": traces, "layout": layout})


def _flat(trace: Plain, scale: Plain) -> Plain:
    """The trace without words beside its marks and without a scale; bars with names as dots."""
    if trace["type"] == "heatmap":
        own = {name: value for name, value in trace.items() if name not in ("coloraxis", "colorbar")}
        shared = {"zmin": scale.get("cmin"), "zmax": scale.get("cmax")} if "coloraxis" in trace else {}
        return {"colorscale": MAGNITUDE, **shared, **own, "showscale": False}
    x = trace.get("x")
    if x is not None and len(x) == 2 and all(isinstance(level, list) for level in x):  # of two levels, a word for each
        x = [", ".join(map(str, pair)) for pair in zip(*x, strict=True)]
    if trace["type"] == "bar" and _are_words(x):
        kept: Plain = {name: trace[name] for name in ("y", "error_y", "name", "showlegend") if name in trace}
        marker = {"color": trace.get("marker", {}).get("color"), "size": 9}
        return {"type": "scatter", "mode": "markers", "x": x, "marker": marker, **kept}
    changed: Plain = {"x": x} if x is not None else {}
    if "text" in str(trace.get("mode")):
        changed["mode"] = "markers"
    if "lines+markers" in str(trace.get("mode")):
        changed["marker"] = {**trace.get("marker", {}), "size": 4}
    return trace | changed


def _layout(layout: Plain) -> Plain:
    """The first panel's axes over the whole room, with few ticks."""
    return {
        "template": layout.get("template", {}),
        "height": HEIGHT,
        "margin": {"l": 38, "r": 10, "t": 30, "b": 34},
        "font": {"size": LETTERS},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"size": LETTERS}},
        "xaxis": _axis(layout.get("xaxis", {})),
        "yaxis": _axis(layout.get("yaxis", {})),
    }


def _axis(axis: Plain) -> Plain:
    title = {"text": axis.get("title", {}).get("text", ""), "standoff": 4, "font": {"size": LETTERS}}
    kept = {name: axis[name] for name in _KEPT if axis.get(name) is not None}
    ticks = {"dtick": 1} if kept.get("type") == "log" else {"nticks": 5}
    return {**kept, **ticks, "title": title, "automargin": True, "domain": [0, 1]}


def _are_words(values: Iterable[Any] | None) -> bool:
    return values is not None and any(isinstance(value, str) for value in values)


def _names(traces: Sequence[Plain]) -> list[str]:
    """The words along an axis of the panel, in their order."""
    axes = [trace.get(name) for trace in traces if trace["type"] in _CURVES for name in ("x", "y")]
    return list(dict.fromkeys(str(value) for axis in axes if axis is not None and _are_words(axis) for value in axis))


def _laid_down(traces: Sequence[Plain], layout: Plain, names: Sequence[str]) -> tuple[list[Plain], Plain]:
    """Words along the x axis to the left, where they need not be turned; too many words are left out."""
    x, y = layout["xaxis"], layout["yaxis"]
    if any(_are_words(trace.get("x")) for trace in traces):
        traces, x, y = [_turned(trace) for trace in traces], y, x
    few = len(names) <= MOST_NAMED
    ticks = {"tickmode": "array", "tickvals": names, "ticktext": [_short(name) for name in names]} if few else {}
    room = {"range": [len(names) - 0.5, -0.5], "autorange": False}
    y = {"title": {"text": ""}, "automargin": True, "type": "category", "showticklabels": few, **room, **ticks}
    height = max(HEIGHT, 74 + ROW * len(names)) if few else HEIGHT
    return list(traces), layout | {"xaxis": x, "yaxis": y, "height": height}


def _turned(trace: Plain) -> Plain:
    """The trace with x and y exchanged."""
    pairs: Mapping[str, str] = {"x": "y", "y": "x", "error_x": "error_y", "error_y": "error_x"}
    turned = {pairs.get(name, name): value for name, value in trace.items()}
    symbol = trace.get("marker", {}).get("symbol")
    if symbol in _LAID_DOWN:
        turned["marker"] = trace["marker"] | {"symbol": _LAID_DOWN[symbol], "size": 12}
    return turned


def _short(name: str) -> str:
    """The last part of a path; a long name ends in three dots."""
    last = name.rsplit("/", 1)[-1]
    return last if len(last) <= LONGEST else f"{last[: LONGEST - 1]}…"


TEMPLATES = Environment(
    loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
TEMPLATES.globals |= {"light": LIGHT, "dark": DARK}
TEMPLATES.filters |= {"caption_of": caption_of, "thumbnail": thumbnail, "untitled": untitled}
TEMPLATES.policies |= {"json.dumps_function": to_json_plotly, "json.dumps_kwargs": {"engine": "json"}}
