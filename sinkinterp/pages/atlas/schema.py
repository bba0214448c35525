"""An atlas: one self-contained page with the attention maps of many heads, each opened by a click.

Maps come as cells (largest and mean value of squares of pairs), are stored as codes of one or two bytes, and are
gathered in the page into the pixels that are shown, at every zoom. Text is handed over as JSON and set as text, never
as markup; a content security policy lets no other script run than the two of the page, and nothing be fetched.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from plotly.colors import get_colorscale
from plotly.offline import get_plotlyjs

from ...plots.theme import SEQUENTIAL
from ...table import Table
from .codes import Scale, linear, logarithmic, packed, text_of

DIVERGING = "RdBu_r"
SLOT = -1  # among places: the column that belongs to no token
HERE = Path(__file__).parent
SCRIPTS = ("cells.js", "atlas.js", "overview.js", "head.js", "controls.js")

Maps = Float[np.ndarray, "map stat row column"]


@dataclass(frozen=True)
class State:
    """What the heads do in one run of the model.

    channels: by name ("weight" always; "score", "cosine", "norm product"), cells of every map, NaN where none may
    attend; `stat` is [largest, mean], or one where a cell is a pair. slot: as "weight", for the off-sequence column.
    importance: of each place in every head of the model.
    """

    name: str
    channels: Mapping[str, Maps]
    importance: Float[np.ndarray, "layer head place"]
    slot: Float[np.ndarray, "map stat row"] | None = None


@dataclass(frozen=True)
class Atlas:
    """What the page shows. `states` are one, or two: before and after an intervention.

    tokens: their text. layers: attention layers, the rows of `importance`. maps: (layer, head) of each map. side: how
    many tokens a cell covers. pairs: how many pairs of each cell may attend, by layer. places: positions of
    `importance`, `SLOT` for the slot.
    """

    model: str
    tokens: Sequence[str]
    layers: Sequence[int]
    maps: Sequence[tuple[int, int]]
    side: int
    pairs: Mapping[int, Int[np.ndarray, "row column"]]
    places: Sequence[int]
    states: Sequence[State]
    bits: int = 16
    lead: str = ""
    note: str = ""
    protocol: str = ""
    tables: Sequence[Table] = field(default=())


def atlas_page(atlas: Atlas) -> str:
    """The page as HTML text."""
    scales = _scales(atlas)
    blocks = dict(_blocks(atlas, scales))
    pairs = _pair_blocks(atlas)
    blocks |= {f"pairs-{i}": block for i, block in enumerate(dict.fromkeys(pairs.values()))}
    names = {block: name for name, block in blocks.items() if name.startswith("pairs-")}
    about = _about(atlas, scales) | {"pairs": {str(layer): names[block] for layer, block in pairs.items()}}
    script, style = "".join(map(_own, SCRIPTS)), _own("atlas.css")
    return Template(_own("atlas.html")).substitute(
        title=escape(f"sinkinterp: {atlas.model}"),
        policy=f"default-src 'none'; script-src {_hash(get_plotlyjs())} {_hash(script)}; "
        "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'",
        style=style, script=script, about=in_script(about), plotly=_plotly(),
        blocks="\n".join(f'<script type="text/plain" id="{name}">{text}</script>' for name, text in blocks.items()),
    )  # fmt: skip


def in_script(data: Any) -> str:
    """JSON that may stand inside a script element: no character in it ends the element or begins a comment."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _scales(atlas: Atlas) -> dict[str, Scale]:
    """One scale for each channel, whatever the state, so that colours and codes can be compared."""
    found: dict[str, Scale] = {}
    for name in atlas.states[0].channels:
        parts = [state.channels[name] for state in atlas.states]
        if name == "weight":
            parts += [state.slot[..., None] for state in atlas.states if state.slot is not None]
        ends = np.array([f(part) for part in parts for f in (_smallest, np.nanmin, np.nanmax)])
        found[name] = logarithmic(ends, atlas.bits) if name == "weight" else linear(ends, atlas.bits)
    importance = np.concatenate([state.importance.ravel() for state in atlas.states])
    return found | {"importance": logarithmic(importance, 16)}


def _smallest(values: np.ndarray) -> float:
    """The smallest value above zero, or zero."""
    return float(np.nanmin(values, where=values > 0, initial=np.inf)) if (values > 0).any() else 0.0


def _blocks(atlas: Atlas, scales: Mapping[str, Scale]) -> Iterator[tuple[str, str]]:
    """Names and texts of codes: of each state, one of importance, and one of each channel and layer."""
    for i, state in enumerate(atlas.states):
        yield f"importance-{i}", packed(scales["importance"].codes(state.importance))
        for layer, maps in _by_layer(atlas).items():
            for name, cells in state.channels.items():
                yield f"{name.replace(' ', '-')}-{i}-{layer}", packed(scales[name].codes(cells[maps]))
            if state.slot is not None:
                yield f"slot-{i}-{layer}", packed(scales["weight"].codes(state.slot[maps]))


def _by_layer(atlas: Atlas) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for i, (layer, _) in enumerate(atlas.maps):
        found.setdefault(layer, []).append(i)
    return found


def _pair_blocks(atlas: Atlas) -> dict[int, str]:
    return {layer: text_of(atlas.pairs[layer].astype("<u4").tobytes()) for layer in _by_layer(atlas)}


def _about(atlas: Atlas, scales: Mapping[str, Scale]) -> dict[str, Any]:
    first = atlas.states[0]
    rows, columns = first.channels["weight"].shape[2:]
    return {
        "model": atlas.model, "lead": atlas.lead, "tokens": list(atlas.tokens), "layers": list(atlas.layers),
        "heads": first.importance.shape[1], "maps": [list(where) for where in atlas.maps], "side": atlas.side,
        "rows": rows, "columns": columns, "places": list(atlas.places), "slot": first.slot is not None,
        "stats": ["largest", "mean"][: first.channels["weight"].shape[1]], "states": [s.name for s in atlas.states],
        "scales": {name: scale.to_dict() for name, scale in scales.items()},
        "colours": {"sequential": get_colorscale(SEQUENTIAL), "diverging": get_colorscale(DIVERGING)},
        "captions": _captions(atlas, scales), "protocol": atlas.protocol, "tables": [_words(t) for t in atlas.tables],
    }  # fmt: skip


def _captions(atlas: Atlas, scales: Mapping[str, Scale]) -> dict[str, str]:
    covers = (
        "One cell is one pair of query and key."
        if atlas.side == 1
        else f"One stored cell covers {atlas.side} x {atlas.side} pairs of query and key: the largest weight and the "
        "mean over those that may attend, both exact. Zooming in gathers stored cells anew, down to one of them. Ranks "
        "are among stored cells."
    )
    kept = "; ".join(f"{name}s {scale.precision()}" for name, scale in scales.items() if name != "importance")
    return {
        "overview": f"Mean attention that the chosen position receives from the queries that can see it. {atlas.note}.",
        "maps": f"The maps of {len(atlas.maps):,} heads, queries downwards, keys to the right, on one colour scale.",
        "head": f"{covers} Kept: {kept}. {atlas.note}.",
    }


def _words(table: Table) -> dict[str, Any]:
    rows = table.display_rows()
    columns = [{"name": name, "wordy": table.is_text(name)} for name in (rows[0] if rows else ())]
    return {
        "title": table.title, "note": table.note, "columns": columns, "rows": [list(row.values()) for row in rows]
    }  # fmt: skip


@cache
def _plotly() -> str:
    return text_of(get_plotlyjs().encode())


def _own(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
