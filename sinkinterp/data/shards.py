"""A stream of tokens cut into chunks and kept as Arrow files, each of which is either whole or absent."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from datasets import Dataset, Features, List, Value, concatenate_datasets
from datasets.arrow_writer import ArrowWriter

from ..files import replacing

COLUMN = "tokens"
AGAIN = "free some space and run it again: finished shards are kept"


@dataclass(frozen=True)
class Cursor:
    """A place in the corpus where a shard ends: so many shards, `offset` tokens into document `document`."""

    shards: int = 0
    document: int = 0
    offset: int = 0


def shards_of(
    documents: Iterable[np.ndarray], start: Cursor, rows: int, width: int
) -> Iterator[tuple[np.ndarray, Cursor]]:
    """Shards of `rows` chunks of `width` tokens, each with its end; the last has fewer rows, the remainder is dropped.

    `documents` begins with document `start.document`, whose first `start.offset` tokens stand in an earlier shard.
    """
    parts: list[np.ndarray] = []
    size, full, shards = 0, rows * width, start.shards
    for i, ids in enumerate(documents, start.document):
        rest = ids[start.offset :] if i == start.document else ids
        parts.append(rest)
        size += len(rest)
        while size >= full:
            flat = np.concatenate(parts)
            parts, size, shards = [flat[full:]], size - full, shards + 1
            yield flat[:full].reshape(rows, width), Cursor(shards, i, len(ids) - size)
    if size >= width:
        yield np.concatenate(parts)[: size // width * width].reshape(-1, width), Cursor(shards + 1, i + 1)


def features(vocab: int, length: int) -> Features:
    """The columns of a shard: one, of `length` ids in the smallest type that holds `vocab` symbols."""
    return Features({COLUMN: List(Value("uint16" if vocab <= 1 << 16 else "int32"), length=length)})


def path_of(folder: Path, shard: int) -> Path:
    """Where a shard lies, counted from 0."""
    return folder / f"shard-{shard:05d}.arrow"


def write(path: Path, chunks: np.ndarray, columns: Features) -> None:
    """Chunks as one Arrow file. Raises InputError where they cannot be written, and then leaves none."""
    with replacing(path, AGAIN) as draft, ArrowWriter(path=str(draft), features=columns) as writer:
        writer.write_batch({COLUMN: chunks.astype(columns[COLUMN].feature.dtype)})
        writer.finalize()


def read(folder: Path, shards: int) -> Dataset:
    """The first shards of a folder as one memory-mapped dataset, in numpy format."""
    parts = [Dataset.from_file(str(path_of(folder, shard))) for shard in range(shards)]
    return concatenate_datasets(parts).with_format("numpy")


def content_hash(chunks: Dataset) -> str:
    """SHA-256 of all ids in order, eight little-endian bytes each, however they are cut into shards."""
    digest = hashlib.sha256()
    for batch in chunks.iter(1 << 13):
        digest.update(batch[COLUMN].astype("<i8").tobytes())
    return digest.hexdigest()
