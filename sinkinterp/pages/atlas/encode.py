"""From an atlas to the data of its page: blocks of codes, and the JSON that says what they are."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ...attention.maps import WEIGHT, Quantity
from ...plots.theme import DARK, LIGHT, Theme
from ...table import Table
from .codes import Scale, linear, logarithmic, packed, text_of
from .contents import Atlas, State
from .schema import (
    CaptionData,
    ChannelData,
    ColumnData,
    ImportanceData,
    PageData,
    TableData,
    ThemeData,
    ThemesData,
)

CELLS = (
    "Queries look at keys; positions count from 0, * is a column that belongs to no token. Weights are those that "
    "multiply the values, or proxy scores |w| / sum |w| where rows do not sum to one. Drag to zoom."
)
Scales = Mapping[Quantity, Scale]


@dataclass
class Blocks:
    """Texts of codes by their ids in the page."""

    texts: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, text: str) -> str:
        """Adds a block; returns its id."""
        self.texts[name] = text
        return name


def encode(atlas: Atlas) -> tuple[PageData, Mapping[str, str]]:
    """The data of the page, and the texts of its blocks by id."""
    scales, blocks = _scales(atlas), Blocks()
    first = atlas.states[0]
    rows, columns = first.channels[WEIGHT].shape[2:]
    data = PageData(
        model=atlas.model,
        lead=atlas.lead,
        protocol=atlas.protocol,
        captions=_captions(atlas, scales),
        tables=[_table(table) for table in atlas.tables],
        tokens=list(atlas.tokens),
        layers=list(atlas.layers),
        heads=first.importance.shape[1],
        maps=list(atlas.maps),
        strongest=_strongest(atlas),
        side=atlas.side,
        rows=rows,
        columns=columns,
        stats=["largest", "mean"][: first.channels[WEIGHT].shape[1]],
        states=[state.name for state in atlas.states],
        places=list(atlas.places),
        importance=_importance(atlas, blocks),
        received=[_received(state) for state in atlas.states],
        channels=[_channel(atlas, channel, scale, blocks) for channel, scale in scales.items()],
        slot_blocks=_slots(atlas, scales[WEIGHT], blocks),
        pair_blocks=_pairs(atlas, blocks),
        themes=ThemesData(_theme(LIGHT), _theme(DARK)),
    )
    return data, blocks.texts


def _scales(atlas: Atlas) -> dict[Quantity, Scale]:
    """One scale for each channel, weights first. States share it, so that their colours and codes can be compared."""
    return {
        channel: (logarithmic if channel is WEIGHT else linear)(_extremes(atlas, channel), atlas.bits)
        for channel in sorted(atlas.states[0].channels, key=lambda channel: channel is not WEIGHT)
    }


def _extremes(atlas: Atlas, channel: Quantity) -> np.ndarray:
    """The smallest value, the smallest above zero and the largest one of a channel in every state."""
    parts = [state.channels[channel] for state in atlas.states]
    if channel is WEIGHT:
        parts += [state.slot[..., None] for state in atlas.states if state.slot is not None]
    return np.array([end(part) for part in parts for end in (_smallest_positive, np.nanmin, np.nanmax)])


def _smallest_positive(values: np.ndarray) -> float:
    """The smallest value above zero, or zero."""
    return float(np.nanmin(values, where=values > 0, initial=np.inf)) if (values > 0).any() else 0.0


def _strongest(atlas: Atlas) -> int:
    """The map with the most attention to position 0 in the first state, before codes round it."""
    of_first = atlas.states[0].importance[:, :, list(atlas.places).index(0)]
    return max(
        range(len(atlas.maps)), key=lambda i: of_first[list(atlas.layers).index(atlas.maps[i][0]), atlas.maps[i][1]]
    )


def _importance(atlas: Atlas, blocks: Blocks) -> ImportanceData:
    scale = logarithmic(np.concatenate([state.importance.ravel() for state in atlas.states]), 16)
    ids = [blocks.add(f"importance-{i}", packed(scale.codes(state.importance))) for i, state in enumerate(atlas.states)]
    return ImportanceData(scale.data(), ids)


def _received(state: State) -> list[float]:
    return [] if state.received is None else [float(f"{value:.3g}") for value in state.received]


def _channel(atlas: Atlas, channel: Quantity, scale: Scale, blocks: Blocks) -> ChannelData:
    name = channel.name.replace(" ", "-")

    def ids(i: int, state: State) -> dict[str, str]:
        return {
            str(layer): blocks.add(f"{name}-{i}-{layer}", packed(scale.codes(state.channels[channel][maps])))
            for layer, maps in atlas.by_layer().items()
        }

    return ChannelData(
        channel.name,
        channel.title,
        _colour_range(channel, scale),
        scale.data(),
        [ids(i, state) for i, state in enumerate(atlas.states)],
    )


def _colour_range(quantity: Quantity, scale: Scale) -> tuple[float, float]:
    """The values at the two ends of the colours: the quantity's bounds, or else the largest value and its negative."""
    largest = max(abs(scale.low), abs(scale.high))
    low = -largest if quantity.low is None else quantity.low
    return float(low), float(largest if quantity.high is None else quantity.high)


def _slots(atlas: Atlas, scale: Scale, blocks: Blocks) -> list[dict[str, str]]:
    """Blocks of every state; a state without the slot that another one has gives it nothing."""
    slots = [state.slot for state in atlas.states if state.slot is not None]

    def ids(i: int, state: State) -> dict[str, str]:
        column = np.zeros_like(slots[0]) if state.slot is None else state.slot
        return {
            str(layer): blocks.add(f"slot-{i}-{layer}", packed(scale.codes(column[maps])))
            for layer, maps in atlas.by_layer().items()
        }

    return [ids(i, state) for i, state in enumerate(atlas.states)] if slots else []


def _pairs(atlas: Atlas, blocks: Blocks) -> dict[str, str]:
    """Layers with the same mask share a block."""
    texts = {layer: text_of(atlas.pairs[layer].astype("<u4").tobytes()) for layer in atlas.by_layer()}
    ids = {text: blocks.add(f"pairs-{i}", text) for i, text in enumerate(dict.fromkeys(texts.values()))}
    return {str(layer): ids[text] for layer, text in texts.items()}


def _captions(atlas: Atlas, scales: Scales) -> CaptionData:
    cell = (
        "One cell is one pair of query and key."
        if atlas.side == 1
        else f"One stored cell covers {atlas.side} x {atlas.side} pairs of query and key: the largest weight and the "
        "mean over those that may attend, both exact. Zooming in gathers stored cells anew, down to one of them. Ranks "
        "are among stored cells."
    )
    kept = "; ".join(f"{channel.name}s {scale.precision()}" for channel, scale in scales.items())
    return CaptionData(
        overview=f"Mean attention that the chosen position receives from the queries that can see it. {atlas.note}.",
        maps=(
            f"The maps of {len(atlas.maps):,} heads on one colour scale: queries downwards, keys to the right. L3 is "
            "layer 3, with its heads from left to right. Click a map to open it."
        ),
        head=f"{CELLS} {cell} Kept: {kept}. {atlas.note}.",
        text=(
            "What a token receives is the mean weight that the queries which can see it give it, its importance. The "
            "colours are those of the maps. Attention to the slot *, which is not a token, is not shown here."
        ),
    )


def _table(table: Table) -> TableData:
    rows = table.display_rows()
    columns = [ColumnData(name, table.is_text(name)) for name in (rows[0] if rows else ())]
    return TableData(table.title, table.note, columns, [list(row.values()) for row in rows])


def _theme(theme: Theme) -> ThemeData:
    return ThemeData(
        sequential=list(theme.sequential), diverging=list(theme.diverging), axis=theme.quiet, mark=theme.colours[1]
    )
