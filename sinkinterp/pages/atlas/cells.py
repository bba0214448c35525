"""What an atlas shows, and how the cells of many heads are read from a model in one forward pass."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from ...attention import maps as attention_maps
from ...attention.maps import QUANTITIES, SCORE, WEIGHT, Quantity
from ...attention.sites import CallRead, Edit
from ...backends.subject import Subject
from ...data.tokens import TokenSet
from ...errors import InputError
from ...measurement.maps import ChosenHeads
from ...table import Table

SLOT = -1  # among `places`: the column that belongs to no token

Maps = Float[np.ndarray, "map stat row column"]


@dataclass(frozen=True)
class State:
    """What the heads do in one run of the model.

    channels: cells of every map, NaN where no pair may attend. `stat` is [largest, mean], or one where a cell is one
    pair. Weights are always among them.
    importance: of each place, for every head of the model.
    slot: attention to the off-sequence column, if there is one.
    received: importance of every position, mean over the maps; None where cells are single pairs and so tell it.
    """

    name: str
    channels: Mapping[Quantity, Maps]
    importance: Float[np.ndarray, "layer head place"]
    slot: Float[np.ndarray, "map stat row"] | None = None
    received: Float[np.ndarray, " pos"] | None = None


@dataclass(frozen=True)
class Atlas:
    """What the page shows.

    tokens: their text.
    layers: the attention layers, which are the rows of `importance`.
    maps: (layer, head) of each map, sorted.
    side: how many tokens a cell covers.
    pairs: how many pairs of each cell may attend, by layer.
    places: the positions of `importance`; `SLOT` is the slot.
    states: one run of the model, or two, before and after an intervention.
    bits: of the codes that cells are stored in.
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

    def by_layer(self) -> dict[int, list[int]]:
        """The indices of each layer's maps."""
        indices: dict[int, list[int]] = {}
        for i, (layer, _) in enumerate(self.maps):
            indices.setdefault(layer, []).append(i)
        return indices


MapKeys = Sequence[tuple[int, int]]  # layer and head of each map
LIMIT = 8_000_000  # bytes of codes: a page of 1,200 heads stays below 12 MB
PER_MAP = 1_700_000  # bytes for one map: a page at T = 16,384 stays below 4 MB


@dataclass(frozen=True)
class Detail:
    """How maps are stored: how many tokens a cell covers, the bits of a code, and which numbers of a pair."""

    side: int
    bits: int
    channels: tuple[Quantity, ...]

    @property
    def stats(self) -> int:
        """Numbers of a cell: the largest and the mean value, or one value where a cell is one pair."""
        return 1 if self.side == 1 else 2

    def size(self, length: int) -> int:
        """Bytes of the codes of a causal map of `length` tokens."""
        n = -(-length // self.side)
        return len(self.channels) * self.stats * self.bits // 8 * n * (n + 1) // 2


@dataclass(frozen=True)
class Cells:
    """What was read of some maps: cells by channel, the slot's column if there is one, and each layer's pairs."""

    channels: dict[Quantity, Maps]
    slot: Float[np.ndarray, "map stat row"] | None
    pairs: dict[int, Int[np.ndarray, "row column"]]


def read_cells(subject: Subject, token_set: TokenSet, maps: MapKeys, detail: Detail, edits: Sequence[Edit]) -> Cells:
    """The cells of the chosen maps in one run of the model with `edits`."""
    chosen, stats = ChosenHeads(maps), detail.stats
    n = -(-token_set.tokens.shape[1] // detail.side)
    reads = {channel.name: chosen.read(_cells_of(channel, detail), stats, n, n) for channel in detail.channels}
    reads["slot"] = chosen.read(lambda call: attention_maps.slot_cells(call, detail.side)[:, :, :stats], stats, n)
    reads["pairs"] = lambda call: attention_maps.pairs(call, detail.side)
    layers = subject.shape.attention_layers
    calls = subject.run(token_set.tokens, reads=reads, edits=edits)
    slot = chosen.of_maps(calls["slot"][0], layers)
    return Cells(
        channels={channel: chosen.of_maps(calls[channel.name][0], layers) for channel in detail.channels},
        slot=None if np.isnan(slot).all() else slot,
        pairs={layer: calls["pairs"][0, layers.index(layer)].cpu().numpy() for layer in chosen.heads},
    )


def _cells_of(channel: Quantity, detail: Detail) -> CallRead:
    return lambda call: attention_maps.cells(call, detail.side, channel)[:, :, : detail.stats]


def _richest_first(length: int) -> Iterator[Detail]:
    """Every pair with all its numbers, then with fewer, then larger and larger cells of weights."""
    yield Detail(1, 16, QUANTITIES)
    yield Detail(1, 8, QUANTITIES)
    yield Detail(1, 8, (WEIGHT, SCORE))
    for side in range(1, length + 1):
        yield Detail(side, 8, (WEIGHT,))


def richest(length: int, maps: int, limit: int = LIMIT) -> Detail:
    """The richest detail in which `maps` maps of `length` tokens take at most `limit` bytes of codes.

    Raises InputError where not even one cell per map fits.
    """
    per_map = min(limit // max(maps, 1), PER_MAP)
    for detail in _richest_first(length):
        if detail.size(length) <= per_map:
            return detail
    raise InputError(f"{limit:,} bytes are too few for {maps:,} maps; allow at least {2 * maps:,}")
