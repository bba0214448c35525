"""The page of an atlas: one self-contained HTML text with the attention maps of many heads, each opened by a click.

Maps are stored as codes of one or two bytes. The scripts join stored cells into the pixels that are shown, at every
zoom. Text is handed over as JSON and set as text, never as markup. A content security policy lets no script run but
the two of the page, and lets nothing be fetched.
"""

import base64
import hashlib
import json
from dataclasses import asdict
from functools import cache
from html import escape
from string import Template
from typing import Any

from plotly.offline import get_plotlyjs

from ..assets import asset
from ..style import STYLE
from .codes import text_of
from .contents import Atlas
from .encode import encode

SCRIPTS = (
    "schema.js",
    "cells.js",
    "data.js",
    "look.js",
    "overview.js",
    "thumbnails.js",
    "head.js",
    "hover.js",
    "controls.js",
    "start.js",
)  # joined to one script, in this order


def atlas_page(atlas: Atlas) -> str:
    """The page as HTML text."""
    data, blocks = encode(atlas)
    script = "".join(asset(f"atlas/{name}") for name in SCRIPTS)
    return Template(asset("atlas/atlas.html")).substitute(
        title=escape(f"sinkinterp: {atlas.model}"),
        policy=_policy(get_plotlyjs(), script),
        style=STYLE + asset("atlas/atlas.css"),
        about=in_script(asdict(data)),
        plotly=_packed_plotly(),
        blocks="\n".join(f'<script type="text/plain" id="{name}">{text}</script>' for name, text in blocks.items()),
        script=script,
    )


def in_script(data: Any) -> str:
    """JSON that may stand inside a script element: no character in it ends the element or begins a comment."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(*scripts: str) -> str:
    """Only these scripts run, and nothing is fetched."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{hash}'" for hash in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; "
        "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


@cache
def _packed_plotly() -> str:
    return text_of(get_plotlyjs().encode())
