"""The page of an atlas: one self-contained HTML text with the attention maps of many heads, each opened by a click.

Maps are stored as codes of one or two bytes. The scripts join stored cells into the pixels that are shown, at every
zoom. Text is handed over as JSON and set as text, never as markup. A content security policy lets no script run but
the two of the page, and lets nothing be fetched.
"""

from dataclasses import asdict
from functools import cache
from string import Template

from plotly.offline import get_plotlyjs

from ..document import STYLE, Scripts, asset, document, in_script
from ..schema import declared
from .codes import text_of
from .contents import Atlas
from .encode import encode
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
    script = "".join(map(asset, SCRIPTS))
    body = Template(asset("atlas/atlas.html")).substitute(
        figures=asset("atlas/figures.html"),
        about=in_script(asdict(data)),
        schema=in_script(declared(PageData)),
        plotly=packed_plotly(),
        blocks="\n".join(f'<script type="text/plain" id="{name}">{text}</script>' for name, text in blocks.items()),
    )
    style = STYLE + asset("atlas/atlas.css")
    return document(f"sinkinterp: {atlas.model}", style, body, Scripts([script], added=[get_plotlyjs()]))


@cache
def packed_plotly() -> str:
    """plotly.js, compressed, as text."""
    return text_of(get_plotlyjs().encode())
