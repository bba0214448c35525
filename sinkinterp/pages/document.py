"""The frame of every page: one content security policy, the style, and the scripts that may run.

All pages go through `document`: view, gallery, report, demo, chapters and front page of the book, the live page, and
files that figures and tables are saved to.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

from ..plots.theme import DARK, LIGHT, Theme
from .glossary import glossary


@dataclass(frozen=True)
class Scripts:
    """The scripts of a page.

    inline: stand at the end of the page, in this order. added: texts that they may add as scripts while the page runs.
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
        return "; ".join(
            [
                "default-src 'none'",
                f"script-src {allowed}",
                *(["connect-src 'self'"] if self.ask_server else []),
                "style-src 'unsafe-inline'",
                "img-src data: blob:",
                "base-uri 'none'",
                "form-action 'none'",
            ]
        )


def document(title: str, style: str, body: str, scripts: Scripts = Scripts()) -> str:
    """A page as HTML text, which ends in the glossary and explains its words. `title` is escaped; `body` is HTML."""
    scripts = replace(scripts, inline=[*scripts.inline, asset("shared/terms.js")])
    elements = "\n".join(f"<script>{script}</script>" for script in scripts.inline)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{scripts.policy()}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style></head>\n"
        f"<body>\n{body}\n{glossary()}\n{elements}\n</body></html>\n"
    )


def in_script(data: Any) -> str:
    """JSON that may stand inside a script element: no character in it ends the element or begins a comment."""
    return safe_in_script(json.dumps(data, separators=(",", ":"), allow_nan=False))


def safe_in_script(text: str) -> str:
    """JSON text with the characters that HTML reads as escapes of JSON."""
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def asset(name: str) -> str:
    """The text of a file of this package, such as "page.css" or "atlas/head.js"."""
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _variables(theme: Theme) -> str:
    return (
        f":root {{ --background: {theme.background}; --text: {theme.text}; "
        f"--quiet: {theme.quiet}; --faint: {theme.faint}; }}"
    )


_IN_DARK = f"@media screen and (prefers-color-scheme: dark) {{ {_variables(DARK)} }}"
STYLE = f"{_variables(LIGHT)}\n{_IN_DARK}\n{asset('style.css')}"
