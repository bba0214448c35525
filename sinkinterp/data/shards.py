"""A stream of tokens, cut into chunks that are kept in Arrow files (shards)."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from datasets import Dataset, Features, List, Value, concatenate_datasets
from datasets.arrow_writer import ArrowWriter

from ..files import replacing

COLUMN = "tokens"
FIX = "free some space and run it again: finished shards are kept"


@dataclass(frozen=True)
class Cursor:
    """The place in a corpus where a shard ends: how many shards there are, and the next document and token of it."""

    shards: int = 0
    document: int = 0
    offset: int = 0


def shards_of(
    documents: Iterable[np.ndarray], start: Cursor, rows: int, width: int
) -> Iterator[tuple[np.ndarray, Cursor]]:
    """Shards of `rows` chunks of `width` tokens, each with its end.

    The last shard may have fewer rows, and tokens that fill no chunk are dropped. `documents` begins with document
    `start.document`, whose first `start.offset` tokens are in an earlier shard.
    """
    pending: list[np.ndarray] = []
    size, full, shards = 0, rows * width, start.shards
    for document, ids in enumerate(documents, start.document):
        new = ids[start.offset :] if document == start.document else ids
        pending.append(new)
        size += len(new)
        while size >= full:
            flat = np.concatenate(pending)
            pending, size, shards = [flat[full:]], size - full, shards + 1
            yield flat[:full].reshape(rows, width), Cursor(shards, document, len(ids) - size)
    if size >= width:
        flat = np.concatenate(pending)
        yield flat[: size // width * width].reshape(-1, width), Cursor(shards + 1, document + 1)


def columns(vocab: int, length: int) -> Features:
    """The columns of a shard: one, of `length` ids in the smallest type that holds `vocab` symbols."""
    return Features({COLUMN: List(Value("uint16" if vocab <= 1 << 16 else "int32"), length=length)})


def shard_path(folder: Path, shard: int) -> Path:
    """The file of a shard, counted from 0."""
    return folder / f"shard-{shard:05d}.arrow"


def write_shard(path: Path, chunks: np.ndarray, features: Features) -> None:
    """Writes chunks to an Arrow file, whole or not at all. Raises InputError where the system refuses."""
    with replacing(path, FIX) as draft, ArrowWriter(path=str(draft), features=features) as writer:
        writer.write_batch({COLUMN: chunks.astype(features[COLUMN].feature.dtype)})
        writer.finalize()


def read_shards(folder: Path, count: int) -> Dataset:
    """The first `count` shards of a folder as one memory-mapped dataset, in numpy format."""
    parts = [Dataset.from_file(str(shard_path(folder, shard))) for shard in range(count)]
    return concatenate_datasets(parts).with_format("numpy")


def content_hash(chunks: Dataset) -> str:
    """SHA-256 of all ids in order, eight little-endian bytes each. It does not depend on how shards are cut."""
    digest = hashlib.sha256()
    for batch in chunks.iter(1 << 13):
        digest.update(batch[COLUMN].astype("<i8").tobytes())
    return digest.hexdigest()
