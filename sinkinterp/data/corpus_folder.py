"""The folder of a packed corpus: its tokenizer, its record, and its chunks of tokens in Arrow files (shards).

The record says how far packing has come, and holds the hashes of the other files. A program that was killed while it
wrote the folder is continued by the next one, after the last whole shard. A corpus is whole when its record names the
hash of all ids.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sized
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, Features, List, Value, concatenate_datasets
from datasets.arrow_writer import ArrowWriter

from ..checks import InputError, check_count
from ..files import Damaged, check_hashes, file_hashes, read_record, remove, replacing, sole_writer, write_record
from .progress import OnProgress
from .tokenizers import check_has, encoded

COLUMN = "tokens"
FIX = "free some space and run it again: finished shards are kept"


@dataclass(frozen=True)
class Cursor:
    """The end of a shard: the number of shards written, and the document and its token that come next."""

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
    """The one column of a shard: rows of `length` ids, in the smallest type that holds `vocab` symbols."""
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


RECORD = "corpus.json"
SHARD = 1 << 24  # tokens per shard; a killed program loses less than one shard


def packed(recipe: Any, folder: Path, cache: Path, on_progress: OnProgress) -> dict[str, Any]:
    """The record of the corpus of a `PackedText` in `folder`, which is packed first unless it is whole.

    A damaged corpus is named on standard error and packed again. Raises InputError for text that fills fewer than two
    chunks, for a tokenizer that lacks the BOS that is wanted, and where a file cannot be written.
    """
    with suppress(Damaged):  # another process may be packing it again
        if "sha256" in (record := record_of(folder)):
            return record
    with sole_writer(folder):
        try:
            record = record_of(folder)
        except Damaged as damage:
            damage.warn("the text is packed again")
            next(iter(recipe.source.texts(cache)), None)  # raises while the old one is there, if no text can be read
            record = {}
        return record if "sha256" in record else _pack(recipe, folder, cache, on_progress, record)


def _pack(recipe: Any, folder: Path, cache: Path, on_progress: OnProgress, record: dict[str, Any]) -> dict[str, Any]:
    """Packs a corpus from where its record ends, or from its beginning if the text is another one since."""
    fingerprint, width = recipe.source.fingerprint(), recipe.length - recipe.bos
    if record.get("fingerprint") != fingerprint:
        files = _begun(recipe, folder, recipe.source.texts(cache, on_progress))
        record = {**asdict(Cursor()), "fingerprint": fingerprint, "files": files}
        write_record(folder / RECORD, record, _of(folder))
    encoder = recipe.tokenizer.load(folder / "tokenizer")
    start = Cursor(record["shards"], record["document"], record["offset"])
    documents = encoded(_counted(recipe.source.texts(cache), start.document, on_progress), encoder)
    for chunks, end in shards_of(documents, start, max(1, SHARD // width), width):
        rows = np.insert(chunks, 0, encoder.bos_token_id, axis=1) if recipe.bos else chunks
        shard = shard_path(folder, end.shards - 1)
        write_shard(shard, rows, columns(recipe.tokenizer.vocab, recipe.length))
        record |= {**asdict(end), "files": record["files"] | file_hashes(folder, shard.name)}
        write_record(folder / RECORD, record, _of(folder))
    chunks = read_shards(folder, record["shards"]) if record["shards"] else []
    check_count(chunks, f"chunks of {recipe.length} tokens, of which a longer text or a smaller length makes more", 2)
    if not _has_words(chunks, encoder):
        raise InputError("the texts are empty or blank: they hold nothing but white space")
    record |= {"chunks": len(chunks), "sha256": content_hash(chunks)}
    write_record(folder / RECORD, record, _of(folder))
    return record


def record_of(folder: Path) -> dict[str, Any]:
    """The record of the corpus in `folder`: shards, fingerprint, the sha256 of each of its files.

    It also holds chunks and sha256 where packing has ended, else the document and its token that come next. Empty
    where packing has not begun. Raises Damaged where a file is not as it was written.
    """
    if not (folder / RECORD).exists():
        return {}
    record: dict[str, Any] = read_record(folder / RECORD, _of(folder))
    check_hashes(folder, record["files"])
    return record


def _begun(recipe: Any, folder: Path, texts: Iterable[str]) -> dict[str, str]:
    """Makes the tokenizer of a corpus in its folder, which is emptied first, and returns the hashes of its files."""
    for path in (folder / RECORD, folder / "tokenizer", *folder.glob("*.arrow")):  # the record first
        remove(path)
    tokenizer = recipe.tokenizer.make(texts)
    if recipe.bos:
        check_has("BOS", tokenizer, f"the tokenizer of {recipe.tokenizer}", "use bos=False or another tokenizer")
    with replacing(folder / "tokenizer", FIX) as draft:
        tokenizer.save_pretrained(draft)
    return file_hashes(folder, "tokenizer/*")


def _has_words(chunks: Dataset, tokenizer: Any) -> bool:
    """Returns true if some token of the chunks, BOS and EOS apart, is more than white space."""
    ids = (int(i) for batch in chunks.iter(1 << 13) for i in np.unique(batch[COLUMN]))
    return any(tokenizer.decode([i], skip_special_tokens=True).strip() for i in ids)


def _of(folder: Path) -> dict[str, str | int]:
    """What the files of a corpus are of: the recipe whose key is the folder's name."""
    return {"corpus": folder.name}


def _counted(texts: Iterable[str], start: int, on_progress: OnProgress) -> Iterator[str]:
    """Yields the texts from number `start` on, and reports each before it is yielded."""
    total = len(texts) if isinstance(texts, Sized) else 0
    for number, text in islice(enumerate(texts, 1), start, None):
        on_progress(number, total)
        yield text
