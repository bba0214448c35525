"""One block's residual stream: which entries stand out, and the surface that shows them (Sun et al. 2024)."""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from ..errors import InputError
from ..measurement.report import Report
from ..metrics.massive import ALL_ENTRIES, TOP_ENTRIES, Entries
from ..plots.columns import POSITION
from ..table import Cell, Table
from .exhibits import Exhibit, TokenText
from .note import protocol_note


@dataclass(frozen=True, repr=False)
class Surface:
    """|x| of one sequence's residual at one block, the largest of every run of `run` channels; `note`: of what."""

    sizes: Float[np.ndarray, "pos run"]
    tokens: tuple[str, ...]
    channels: tuple[int, ...]
    run: int
    block: int
    note: str

    def __repr__(self) -> str:
        return f"<Surface of block {self.block}: {len(self.tokens)} tokens x {len(self.channels)} runs of channels>"


@dataclass(frozen=True)
class Place:
    """What stands at one (position, channel) of a block: the values over sequences, and the ids of the tokens there."""

    values: list[float] = field(default_factory=list)
    token_ids: set[int] = field(default_factory=set)


def tallest_block(report: Report) -> int:
    """The block with the largest residual entry, mean over sequences.

    Raises InputError where the instrument MASSIVE was not measured.
    """
    return int(Entries.unstacked(report.extra(TOP_ENTRIES)).values[:, :, 0].abs().mean(0).argmax())


def largest_entries(
    report: Report, epsilon: float = 0.3, token_text: TokenText = str, block: int | None = None, most: int = 12
) -> Table:
    """The largest residual entries of a block (default: the tallest), by (position, channel), most frequent first.

    Of every sequence the five largest count. Raises InputError where the instrument MASSIVE was not measured.
    """
    block = tallest_block(report) if block is None else _index(block, report.residual_norms.shape[1])
    places: dict[tuple[int, int], Place] = defaultdict(Place)
    for value, position, channel, token_id in _top_entries(report, block):
        places[position, channel].values.append(value)
        places[position, channel].token_ids.add(token_id)
    most_frequent = sorted(places.items(), key=lambda item: (-len(item[1].values), item[0]))[:most]
    rows = [_entry_row(position, channel, place, token_text) for (position, channel), place in most_frequent]
    note = f"{protocol_note(report, epsilon)}; block 0 is the embedding"
    return Table(f"Largest residual entries of block {block}", note, tuple(rows))


def residual_surface(
    report: Report, token_text: TokenText = str, block: int | None = None, sequence: int = 0, most: int = 512
) -> Surface:
    """Residual magnitudes of a block (default: with the largest entry) over tokens and channels, of one sequence.

    More than `most` channels are shown in runs, the largest of each. Raises InputError where the instrument RESIDUALS
    was not measured, and for a block or sequence that is not there.
    """
    residuals = report.extra(ALL_ENTRIES).abs()  # sequence block channel pos
    sequence = _index(sequence, len(residuals))
    tallest = int(residuals[sequence].nan_to_num(0).amax((1, 2)).argmax())
    block = tallest if block is None else _index(block, residuals.shape[1])
    length = int((report.tokens[sequence] >= 0).sum())
    x = residuals[sequence, block, :, :length].numpy()
    run = math.ceil(len(x) / most)
    starts = range(0, len(x), run)
    return Surface(
        sizes=np.stack([x[start : start + run].max(0) for start in starts], -1),
        tokens=tuple(map(token_text, report.tokens[sequence, :length].tolist())),
        channels=tuple(starts),
        run=run,
        block=block,
        note=f"{report.protocol.model}: sequence {sequence} of {report.protocol.line()}",
    )


def _top_entries(report: Report, block: int) -> Iterator[tuple[float, int, int, int]]:
    """Value, position, channel and token id of every sequence's largest entries."""
    top = Entries.unstacked(report.extra(TOP_ENTRIES)[:, block])
    token_ids = report.tokens.gather(1, top.positions)
    columns = (top.values, top.positions, top.channels, token_ids)
    yield from zip(*(column.flatten().tolist() for column in columns), strict=True)


def _entry_row(position: int, channel: int, place: Place, token_text: TokenText) -> dict[str, Cell]:
    n_tokens = len(place.token_ids)
    return {
        POSITION: position,
        "channel": channel,
        "token": token_text(min(place.token_ids)) if n_tokens == 1 else f"{n_tokens} different",
        "in sequences": len(place.values),
        "mean value": math.fsum(place.values) / len(place.values),
        "largest |value|": max(map(abs, place.values)),
    }


def _index(index: int, count: int) -> int:
    if not 0 <= index < count:
        raise InputError(f"blocks and sequences count from 0; there is no {index} of {count}")
    return index


EXHIBITS = (Exhibit(TOP_ENTRIES, largest_entries, on_page=True),)
