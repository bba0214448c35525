"""The page of an atlas: one self-contained HTML text with the attention maps of many heads, each opened by a click.

Maps are stored as codes of one or two bytes. The scripts join stored cells into the pixels that are shown, at every
zoom. Text is handed over as JSON and set as text, never as markup. A content security policy lets no script run but
the two of the page, and lets nothing be fetched.
"""

from dataclasses import asdict
from functools import cache

from plotly.offline import get_plotlyjs

from ..page import Scripts, asset, declared, document, rendered
from .build import Atlas
from .encode import encode, text_of
from .schema import PageData

FIGURES = (
    "shared/checked.js",
    "shared/palette.js",
    "shared/grid.js",
    "shared/tip.js",
    "atlas/cells.js",
    "atlas/data.js",
    "atlas/look.js",
    "atlas/overview.js",
    "atlas/thumbnails.js",
    "atlas/head.js",
    "atlas/hover.js",
    "atlas/words.js",
    "atlas/controls.js",
    "atlas/show.js",
)  # what draws an atlas, here and on the live page; joined to one script, in this order
SCRIPTS = (*FIGURES, "atlas/start.js")


def atlas_page(atlas: Atlas) -> str:
    """The page as HTML text."""
    data, blocks = encode(atlas)
    values = {"about": asdict(data), "schema": declared(PageData), "plotly": packed_plotly(), "blocks": blocks}
    scripts = Scripts(["".join(map(asset, SCRIPTS))], added=[get_plotlyjs()])
    return document(f"sinkinterp: {atlas.model}", rendered("atlas/atlas.html", **values), ["atlas/atlas.css"], scripts)


@cache
def packed_plotly() -> str:
    """plotly.js, compressed, as text."""
    return text_of(get_plotlyjs().encode())
