"""How much of every map a page can store within a limit of bytes."""

from collections.abc import Iterator
from dataclasses import dataclass

from ...errors import InputError
from .channels import CHANNELS, SCORE, WEIGHT, Channel

LIMIT = 8_000_000  # bytes of codes: a page of 1,200 heads stays below 12 MB
PER_MAP = 1_700_000  # bytes for one map: a page at T = 16,384 stays below 4 MB


@dataclass(frozen=True)
class Detail:
    """How maps are stored: how many tokens a cell covers, the bits of a code, and which numbers of a pair."""

    side: int
    bits: int
    channels: tuple[Channel, ...]

    @property
    def stats(self) -> int:
        """Numbers of a cell: the largest and the mean value, or one value where a cell is one pair."""
        return 1 if self.side == 1 else 2

    def size(self, length: int) -> int:
        """Bytes of the codes of a causal map of `length` tokens."""
        n = -(-length // self.side)
        return len(self.channels) * self.stats * self.bits // 8 * n * (n + 1) // 2


def _richest_first(length: int) -> Iterator[Detail]:
    """Every pair with all its numbers, then with fewer, then larger and larger cells of weights."""
    yield Detail(1, 16, CHANNELS)
    yield Detail(1, 8, CHANNELS)
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
