"""From an atlas to the data of its page: numbers in one or two bytes, and the JSON that describes them.

The page carries the types of this JSON, and checks its data by them before it draws. A test holds that the scripts read
every field, and no other.
"""

import base64
import gzip
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache

import numpy as np
import torch
from jaxtyping import Float
from plotly.offline import get_plotlyjs
from torch import Tensor

from ..attention import WEIGHT, Quantity
from ..files import data_of
from ..plots.theme import DARK, LIGHT, Theme
from ..report.readings import protocol_note, public_name, short_name
from ..report.report import Report
from ..report.summary import sink_verdict
from ..table import Table
from .atlas import Atlas
from .page import Scripts, asset, declared, document, rendered

Values = Float[np.ndarray, "*shape"]
SLOT = -1  # among `places`: the column that belongs to no token
PLACES = 64  # positions that the overview offers
EPSILON = 0.3
_NOTHING = (None, "", ())  # values of a protocol that say nothing


@dataclass(frozen=True)
class Scale:
    """Codes of values from `low` to `high` in even steps, from 1 on. Code 0 stands for no value (NaN).

    A logarithmic scale has even ratios, from code 2 on. Its code 1 stands for 0, and for what rounds below `low`.
    """

    low: float
    high: float
    bits: int = 8
    is_log: bool = False

    @property
    def step(self) -> float:
        """The difference between neighbouring codes: of their values, or of the logarithms of these."""
        low, high = self._places(np.array([self.low, self.high]))
        return float(high - low) / (2**self.bits - 2 - self.is_log)

    def codes(self, values: Values) -> np.ndarray:
        """The nearest codes, `bits` wide."""
        first, places = 1 + self.is_log, self._places(values.astype(np.float64))
        steps = np.rint((places - self._places(np.array(self.low))) / (self.step or 1))
        codes = np.clip(steps, -self.is_log, 2**self.bits - 1 - first) + first
        return np.where(np.isnan(values), 0, codes).astype(f"uint{self.bits}")

    def precision(self) -> str:
        """A text that says how far a code may be from its value."""
        if self.is_log:
            return f"to within {100 * np.expm1(self.step / 2):.1g}%, or as 0 below {self.low:.1g}"
        return f"to within {self.step / 2:.1g}"

    @np.errstate(divide="ignore")
    def _places(self, values: Values) -> Values:
        return np.asarray(np.log(np.maximum(values, 0)) if self.is_log else values)


@dataclass(frozen=True)
class ImportanceData:
    """Importance: its scale, and for each state the id of the block that holds it."""

    scale: Scale
    blocks: list[str]


@dataclass(frozen=True)
class ChannelData:
    """A channel: its name, its colours and codes, and for each state, by layer, the id of its block."""

    name: str
    title: str
    colour_range: tuple[float, float]
    scale: Scale
    blocks: list[dict[str, str]]


@dataclass(frozen=True)
class CaptionData:
    """The text under each figure."""

    overview: str
    maps: str
    head: str
    text: str


@dataclass(frozen=True)
class ColumnData:
    """The head of a table's column, and whether it holds words, which are aligned to the left."""

    name: str
    wordy: bool


@dataclass(frozen=True)
class TableData:
    """A table as text."""

    title: str
    note: str
    columns: list[ColumnData]
    rows: list[list[str]]


@dataclass(frozen=True)
class ThemeData:
    """Colours as #RRGGBB: two scales, evenly spaced, the lines of axes, and the frame around the open head."""

    sequential: list[str]
    diverging: list[str]
    axis: str
    mark: str


@dataclass(frozen=True)
class PageData:
    """Everything that the scripts of a page read, except the blocks of numbers.

    tokens: their text. layers: the attention layers. heads: how many each of them has. maps: (layer, head) of each map.
    strongest: the map with the most attention to position 0. side: how many tokens a cell covers. rows, columns: cells
    of a map. stats: the numbers of a cell. states: names of the runs of the model. places: positions of the overview,
    -1 for the slot. received: for each state, the importance of every position, mean over the maps; empty where the
    cells tell it. slot_blocks: for each state, by layer, the id of the block of the slot's weights; none without a
    slot. pair_blocks: by layer, the id of the block that says how many pairs of each cell may attend. themes: colours
    for viewers who prefer "light" pages, and for those who prefer "dark" ones.
    """

    model: str
    lead: str
    protocol: str
    captions: CaptionData
    tables: list[TableData]
    tokens: list[str]
    layers: list[int]
    heads: int
    maps: list[tuple[int, int]]
    strongest: int
    side: int
    rows: int
    columns: int
    stats: list[str]
    states: list[str]
    places: list[int]
    importance: ImportanceData
    received: list[list[float]]
    channels: list[ChannelData]
    slot_blocks: list[dict[str, str]]
    pair_blocks: dict[str, str]
    themes: dict[str, ThemeData]


def linear(values: Values, bits: int) -> Scale:
    """The scale from the smallest to the largest value."""
    low, high = (float(v) for v in (np.nanmin(values), np.nanmax(values)))
    return Scale(low, max(high, low + 1e-6), bits)


def logarithmic(values: Values, bits: int) -> Scale:
    """The scale up to the largest value, from the smallest value above 0, but from no less than a floor.

    The floor is a millionth of the largest value with 8 bits, and 1e-12 of it with 16 bits.
    """
    high = float(np.nanmax(values, initial=0)) or 1.0
    floor = high * (1e-6 if bits == 8 else 1e-12)
    low = float(np.nanmin(np.where(values > 0, values, high)))
    return Scale(min(max(low, floor), high / 2), high, bits, is_log=True)


def packed(codes: np.ndarray) -> str:
    """Codes as text: all low bytes, then all high bytes if codes have two, compressed (gzip), in base64."""
    return text_of(codes.astype(f"<u{codes.itemsize}").reshape(-1, 1).view(np.uint8).T.tobytes())


def text_of(data: bytes) -> str:
    """Bytes as text: compressed (gzip), in base64. The same bytes give the same text."""
    return base64.b64encode(gzip.compress(data, 6, mtime=0)).decode()


Blocks = dict[str, str]  # texts of codes by their ids in the page


def encode(atlas: Atlas) -> tuple[PageData, Mapping[str, str]]:
    """The data of the page, and the texts of its blocks by id."""
    scales, blocks, reports = _scales(atlas), Blocks(), atlas.reports
    first, last = reports[0], reports[-1]
    captions, places = _captions(atlas, scales), _places(reports)
    n_cells = -(-first.tokens.shape[1] // atlas.detail.side)
    data = PageData(
        model=short_name(first.protocol.model),
        lead="After the edits: " * (len(reports) > 1) + sink_verdict(last, token_text=atlas.token_text),
        protocol=captions.pop("protocol"),
        captions=CaptionData(**captions),
        tables=[_table(table) for table in atlas.tables],
        tokens=list(map(atlas.token_text, first.tokens[0].tolist())),
        layers=list(first.attention_layers),
        heads=first.importance.shape[2],
        maps=list(atlas.maps),
        strongest=int(_of_maps(atlas, first.alpha()[0]).numpy().argmax()),  # before codes round it
        side=atlas.detail.side,
        rows=n_cells,
        columns=n_cells,
        stats=["largest", "mean"][: atlas.detail.stats],
        states=list(atlas.runs),
        places=places,
        importance=_importance(reports, places, blocks),
        received=[_received(atlas, report) for report in reports],
        channels=[_channel(atlas, channel, scale, blocks) for channel, scale in scales.items()],
        slot_blocks=_slots(atlas, scales[WEIGHT], blocks),
        pair_blocks=_pairs(atlas, blocks),
        themes={"light": _theme(LIGHT), "dark": _theme(DARK)},
    )
    return data, blocks


def _scales(atlas: Atlas) -> dict[Quantity, Scale]:
    """One scale for each channel, weights first. Runs share it, so that their colours and codes can be compared."""
    runs = atlas.runs.values()
    slots, scales = [run.slot for run in runs if run.slot is not None], {}
    for channel in sorted(atlas.detail.channels, key=lambda channel: channel is not WEIGHT):
        parts = [run.channels[channel] for run in runs] + (slots if channel is WEIGHT else [])
        values = np.concatenate([part.ravel() for part in parts])
        scales[channel] = (logarithmic if channel is WEIGHT else linear)(values, atlas.detail.bits)
    return scales


def _places(reports: Sequence[Report]) -> list[int]:
    """Position 0 and those that receive the most attention in the first report, in order; then a slot of any report."""
    first = reports[0]
    received = first.importance[0].nan_to_num().sum((0, 1)) * torch.arange(len(first.positions), 0, -1)
    strongest = {0, *received.argsort(descending=True)[:PLACES].tolist()}
    return [*sorted(strongest), *([SLOT] if any(report.slot_importance is not None for report in reports) else [])]


def _importance(reports: Sequence[Report], places: Sequence[int], blocks: Blocks) -> ImportanceData:
    """Importance of each place in every head. A slot that only another run has receives nothing."""
    importances = []
    for report in reports:
        slot = torch.zeros_like(report.alpha()) if report.slot_importance is None else report.slot_importance
        of_places = [(slot if place == SLOT else report.alpha(place))[0] for place in places]
        importances.append(torch.stack(of_places, -1).numpy())  # layer head place
    scale = logarithmic(np.stack(importances), 16)
    codes = {f"importance-{i}": packed(scale.codes(importance)) for i, importance in enumerate(importances)}
    blocks |= codes
    return ImportanceData(scale, [*codes])


def _of_maps(atlas: Atlas, values: Float[Tensor, "layer head ..."]) -> Float[Tensor, "map ..."]:
    """The values of the heads whose maps are shown."""
    layers = atlas.reports[0].attention_layers
    rows, heads = zip(*((layers.index(layer), head) for layer, head in atlas.maps), strict=True)
    return values[list(rows), list(heads)]


def _received(atlas: Atlas, report: Report) -> list[float]:
    """Importance of every position, mean over the maps; nothing where cells are single pairs, which tell it."""
    if atlas.detail.side == 1:
        return []
    return [float(f"{value:.3g}") for value in _of_maps(atlas, report.importance[0].nan_to_num()).mean(0).tolist()]


def _by_layer(atlas: Atlas, name: str, codes: np.ndarray, blocks: Blocks) -> dict[str, str]:
    """The id of the block of each layer's codes."""
    blocks |= {f"{name}-{layer}": packed(codes[maps]) for layer, maps in atlas.by_layer().items()}
    return {str(layer): f"{name}-{layer}" for layer in atlas.by_layer()}


def _channel(atlas: Atlas, channel: Quantity, scale: Scale, blocks: Blocks) -> ChannelData:
    name, codes = channel.name.replace(" ", "-"), [scale.codes(run.channels[channel]) for run in atlas.runs.values()]
    ids = [_by_layer(atlas, f"{name}-{i}", of_run, blocks) for i, of_run in enumerate(codes)]
    return ChannelData(channel.name, channel.title, _colour_range(channel, scale), scale, ids)


def _colour_range(quantity: Quantity, scale: Scale) -> tuple[float, float]:
    """The values at the two ends of the colours: the quantity's bounds, or else the largest value and its negative."""
    largest = max(abs(scale.low), abs(scale.high))
    low = -largest if quantity.low is None else quantity.low
    return float(low), float(largest if quantity.high is None else quantity.high)


def _slots(atlas: Atlas, scale: Scale, blocks: Blocks) -> list[dict[str, str]]:
    """Blocks of every run; a run without the slot that another one has gives it nothing."""
    slots = [run.slot for run in atlas.runs.values()]
    any_slot = next((slot for slot in slots if slot is not None), None)
    if any_slot is None:
        return []
    columns = [np.zeros_like(any_slot) if slot is None else slot for slot in slots]
    return [_by_layer(atlas, f"slot-{i}", scale.codes(column), blocks) for i, column in enumerate(columns)]


def _pairs(atlas: Atlas, blocks: Blocks) -> dict[str, str]:
    """Layers with the same mask share a block."""
    pairs = next(iter(atlas.runs.values())).pairs
    texts = {layer: text_of(pairs[layer].astype("<u4").tobytes()) for layer in atlas.by_layer()}
    ids = {text: f"pairs-{i}" for i, text in enumerate(dict.fromkeys(texts.values()))}
    blocks |= {name: text for text, name in ids.items()}
    return {str(layer): ids[text] for layer, text in texts.items()}


def _captions(atlas: Atlas, scales: Mapping[Quantity, Scale]) -> dict[str, str]:
    """The text under each figure, and the protocol."""
    words = data_of("pages/templates/atlas/captions.toml")
    pair, pairs = words.pop("pair"), words.pop("pairs").format(side=atlas.detail.side)
    kept = "; ".join(f"{channel.name}s {scale.precision()}" for channel, scale in scales.items())
    numbers = {"n_maps": len(atlas.maps), "cell": pair if atlas.detail.side == 1 else pairs, "kept": kept}
    numbers |= {"note": protocol_note(atlas.reports[-1], EPSILON), "protocol": _protocol(atlas.reports)}
    return {name: text.format(**numbers) for name, text in words.items()}


def _protocol(reports: Sequence[Report]) -> str:
    protocols = (vars(r.protocol) | {"model": public_name(r.protocol.model)} for r in reports)
    lines = ([f"{name}: {value}" for name, value in each.items() if value not in _NOTHING] for each in protocols)
    return " | ".join(map("; ".join, lines))


def _table(table: Table) -> TableData:
    rows = table.texts()
    columns = [ColumnData(name, table.is_text(name)) for name in (rows[0] if rows else ())]
    return TableData(table.title, table.note, columns, [list(row.values()) for row in rows])


def _theme(theme: Theme) -> ThemeData:
    return ThemeData([*theme.sequential], [*theme.diverging], axis=theme.quiet, mark=theme.colours[1])


_SHARED, _OWN = "checked palette grid tip", "cells data look overview thumbnails head hover words controls show"
# what draws an atlas, here and on the live page; joined to one script, in this order
FIGURES = (*(f"shared/{name}.js" for name in _SHARED.split()), *(f"atlas/{name}.js" for name in _OWN.split()))
SCRIPTS = (*FIGURES, "atlas/start.js")


def atlas_page(atlas: Atlas) -> str:
    """The page as HTML text."""
    data, blocks = encode(atlas)
    values = {"about": asdict(data), "schema": declared(PageData), "plotly": packed_plotly(), "blocks": blocks}
    scripts = Scripts(["".join(map(asset, SCRIPTS))], added=[get_plotlyjs()])
    return document(f"sinkinterp: {data.model}", rendered("atlas/atlas.html", **values), ["atlas/atlas.css"], scripts)


@cache
def packed_plotly() -> str:
    """plotly.js, compressed, as text."""
    return text_of(get_plotlyjs().encode())
