"""One block's residual stream: which entries stand out, and the surface that shows them (Sun et al. 2024)."""

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from ..errors import InputError
from ..measurement.report import Report
from ..table import Cell, Table
from .note import note
from .positions import Word


@dataclass(frozen=True)
class Surface:
    """|x| of one sequence's residual at one block, the largest of every run of `run` channels; `note`: of what."""

    sizes: Float[np.ndarray, "pos run"]
    tokens: tuple[str, ...]
    channels: tuple[int, ...]
    run: int
    block: int
    note: str


def tallest_block(report: Report) -> int:
    """The block with the largest residual entry, mean over sequences. Raises InputError without massive activations."""
    return int(report.extra("top_entries")[:, :, 0, 0].abs().mean(0).argmax())


def entries(report: Report, word: Word = str, block: int | None = None, epsilon: float = 0.3, most: int = 12) -> Table:
    """The largest residual entries of a block (default: the tallest), by (position, channel), most frequent first.

    Of every sequence the five largest count. Raises InputError where massive activations were not measured.
    """
    block = tallest_block(report) if block is None else _inside(block, report.residual_norms.shape[1])
    values: dict[tuple[int, int], list[float]] = defaultdict(list)
    texts: dict[tuple[int, int], set[int]] = defaultdict(set)
    for tokens, top in zip(report.tokens.tolist(), report.extra("top_entries")[:, block].tolist(), strict=True):
        for value, position, channel in top:
            values[int(position), int(channel)].append(value)
            texts[int(position), int(channel)].add(tokens[int(position)])
    rows: list[dict[str, Cell]] = [
        {
            "position": position,
            "channel": channel,
            "token": word(min(ids)) if len(ids := texts[position, channel]) == 1 else f"{len(ids)} different",
            "in sequences": len(found),
            "mean value": math.fsum(found) / len(found),
            "largest |value|": max(map(abs, found)),
        }
        for (position, channel), found in sorted(values.items(), key=lambda item: (-len(item[1]), item[0]))[:most]
    ]
    return Table(
        f"Largest residual entries of block {block}", f"{note(report, epsilon)}; block 0 is the embedding", tuple(rows)
    )


def surface(report: Report, word: Word = str, block: int | None = None, sequence: int = 0, most: int = 512) -> Surface:
    """Residual magnitudes of a block (default: with the largest entry) over tokens and channels, of one sequence.

    More than `most` channels are shown in runs, the largest of each. Raises InputError where the instrument RESIDUALS
    was not taken along, and for a block or sequence that is not there.
    """
    residuals = report.extra("residuals").abs()  # sequence block channel pos
    sequence = _inside(sequence, len(residuals))
    tallest = int(residuals[sequence].nan_to_num(0).amax((1, 2)).argmax())
    block = tallest if block is None else _inside(block, residuals.shape[1])
    length = int((report.tokens[sequence] >= 0).sum())
    x = residuals[sequence, block, :, :length].numpy()
    run = math.ceil(len(x) / most)
    starts = range(0, len(x), run)
    return Surface(
        sizes=np.stack([x[start : start + run].max(0) for start in starts], -1),
        tokens=tuple(map(word, report.tokens[sequence, :length].tolist())),
        channels=tuple(starts), run=run, block=block,
        note=f"{report.protocol.model}: sequence {sequence} of {report.protocol.line()}",
    )  # fmt: skip


def _inside(index: int, count: int) -> int:
    if not 0 <= index < count:
        raise InputError(f"blocks and sequences count from 0; there is no {index} of {count}")
    return index
