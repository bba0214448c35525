"""Reads the cells of many heads from a model in one forward pass."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from ...attention import maps as attention_maps
from ...attention.maps import QUANTITIES, SCORE, WEIGHT, Quantity
from ...attention.sites import CallRead, Edit
from ...backends.subject import Subject
from ...data.tokens import TokenSet
from ...errors import InputError
from ...measurement.maps import ChosenHeads
from .contents import Maps

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
