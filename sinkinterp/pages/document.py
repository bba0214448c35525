"""The frame of every page, from Jinja2 templates: one content security policy, the style, and the scripts.

All pages go through `document`: view, gallery, report, demo, chapters and front page of the book, and the live page.
Templates escape each text; only `Markup` is taken as HTML.
"""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.io.json import to_json_plotly

from ..plots.small import thumbnail, untitled
from ..plots.theme import DARK, LIGHT, caption_of

FOLDER = Path(__file__).parent


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
        hashes = [f"'sha256-{_hash(script)}'" for script in (*self.added, *self.inline)]
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


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


TEMPLATES = Environment(
    loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
TEMPLATES.globals |= {"light": LIGHT, "dark": DARK}
TEMPLATES.filters |= {"caption_of": caption_of, "thumbnail": thumbnail, "untitled": untitled}
TEMPLATES.policies |= {"json.dumps_function": to_json_plotly, "json.dumps_kwargs": {"engine": "json"}}
