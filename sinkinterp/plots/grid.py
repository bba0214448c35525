"""Heads as a small grid of coloured squares, without plotly.js: for a notebook's card."""

from html import escape

from ..table import Table
from .columns import ALPHA_1, HEAD, LAYER
from .theme import LIGHT

SIDE = 480  # points, at most
LARGEST_CELL = 28


def heads_svg(table: Table) -> str:
    """alpha_1 of every head, a row per layer, dark for much; from `tables.sinks_by_head`."""
    layers, heads = (list(dict.fromkeys(table.column(name))) for name in (LAYER, HEAD))
    side = max(4, min(LARGEST_CELL, SIDE // max(len(layers), len(heads))))
    cells = "".join(
        f'<rect x="{heads.index(row[HEAD]) * side}" y="{layers.index(row[LAYER]) * side}" width="{side - 1}" '
        f'height="{side - 1}" fill="{_colour(float(row[ALPHA_1] or 0))}">'
        f"<title>layer {row[LAYER]}, head {row[HEAD]}: {float(row[ALPHA_1] or 0):.3f}</title></rect>"
        for row in table.rows
    )
    width, height = len(heads) * side, len(layers) * side
    label = escape(f"alpha_1 of {len(layers)} layers (down) x {len(heads)} heads (across), 0 to 1")
    return (
        f'<figure style="margin:0"><svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'role="img" aria-label="{label}">{cells}</svg><figcaption><small>{label}</small></figcaption></figure>'
    )


def _colour(share: float) -> str:
    """The colour of a share of attention, between two of the theme's scale."""
    place = min(1.0, max(0.0, share)) * (len(LIGHT.sequential) - 1)
    low = min(int(place), len(LIGHT.sequential) - 2)
    ends = (LIGHT.sequential[low], LIGHT.sequential[low + 1])
    mixed = [
        round(int(a, 16) + (int(b, 16) - int(a, 16)) * (place - low))
        for a, b in zip(*((end[1:3], end[3:5], end[5:7]) for end in ends), strict=True)
    ]
    return "#" + "".join(f"{value:02X}" for value in mixed)
