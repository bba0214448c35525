"""The live page as HTML text. It asks its own server, and nothing else."""

from string import Template
from typing import Any

from ...plots.theme import DARK, LIGHT
from ..assets import asset
from ..document import Scripts, document, in_script
from ..glossary import glossary
from ..style import STYLE
from .edits import KINDS, REAL
from .session import Session

ASK = "/ask"  # the path that questions are sent to
SCRIPTS = ("shared/palette.js", "shared/grid.js", "shared/tip.js", "live/maps.js", "live/live.js")


def live_page(session: Session) -> str:
    """The page of a session. Text of prompts and tokens is only ever set as text, never as markup."""
    kinds = {name: {"title": kind.title, "fields": dict(kind.fields)} for name, kind in KINDS.items()}
    about: dict[str, Any] = {
        **session.facts(),
        "ask": ASK,
        "kinds": kinds,
        "real": list(REAL),
        "themes": {name: {"sequential": list(t.sequential)} for name, t in (("light", LIGHT), ("dark", DARK))},
    }
    body = Template(asset("live/live.html")).substitute(about=in_script(about), glossary=glossary())
    script = "".join(map(asset, SCRIPTS))
    title = f"{about['model']}: live"
    return document(title, STYLE + asset("live/live.css"), body, Scripts([script], ask_server=True))
