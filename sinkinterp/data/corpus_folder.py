"""The folder of a packed corpus: its tokenizer, its shards and its record.

A program that was killed while it wrote the folder is continued by the next one, after the last whole shard. The
record, and the note of how far packing is, hold the hashes of the other files.
"""

import json
from collections.abc import Iterable, Iterator, Sized
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from ..files import remove, replacing
from ..seals import Damaged, check, read_record, seal, sums, verify, write_record
from . import shards
from .progress import OnProgress
from .sources import Source
from .tokenisers import TokenizerRecipe, encoded

RECORD = "corpus.json"
PROGRESS = "progress.json"
_EARLIER_RECORD = "packed.json"  # of versions that kept no hashes of files
SHARD = 1 << 24  # tokens per shard; a killed program loses less than one shard


def pack(
    folder: Path,
    cache: Path,
    source: Source,
    tokenizer: TokenizerRecipe,
    length: int,
    bos: bool,
    on_progress: OnProgress,
) -> dict[str, Any]:
    """Packs a corpus into `folder` and returns its record. The parameters are the fields of `PackedText`.

    Only the folder's one writer may call this. Raises InputError for text that fills fewer than two chunks, for a
    tokenizer that lacks the BOS that is wanted, and where a file cannot be written.
    """
    fingerprint, width = source.fingerprint(), length - bos
    start, files = _continued_from(folder, fingerprint)
    end, encoder = start, _tokenizer_in(folder, tokenizer, bos, source.texts(cache, on_progress))
    documents = encoded(_counted(source.texts(cache), start.document, on_progress), encoder)
    for chunks, end in shards.shards_of(documents, start, max(1, SHARD // width), width):
        rows = np.insert(chunks, 0, encoder.bos_token_id, axis=1) if bos else chunks
        shard = shards.shard_path(folder, end.shards - 1)
        shards.write_shard(shard, rows, shards.columns(tokenizer.vocab, length))
        files |= sums(folder, shard.name)
        _write_progress(folder, end, fingerprint, files)
    return _write_record(folder, end.shards, fingerprint, length, files)


def record_of(folder: Path) -> dict[str, Any]:
    """The record of the corpus in `folder`: shards, chunks, sha256, fingerprint, and the sha256 of each of its files.

    Empty where packing has not ended. A corpus of an earlier version has no hashes of files: its ids are compared with
    the hash of all ids, and it gets a record with hashes. Raises Damaged where a file is not as it was written.
    """
    file = folder / RECORD
    if not file.exists():
        return _adopted(folder) if (folder / _EARLIER_RECORD).exists() else {}
    record = read_record(file)
    check(folder, record["files"])
    with suppress(OSError):  # in a folder that cannot be written to
        (folder / PROGRESS).unlink(missing_ok=True)  # a kill after the record was written left it
    return record


def emptied(folder: Path) -> None:
    """Removes a corpus from its folder, the records first."""
    for name in (RECORD, _EARLIER_RECORD, PROGRESS, "tokenizer"):
        remove(folder / name)
    for shard in folder.glob("*.arrow"):
        remove(shard)


def _adopted(folder: Path) -> dict[str, Any]:
    """The record of a corpus that an earlier version packed, written again with the hashes of its files."""
    file = folder / _EARLIER_RECORD
    try:
        record = json.loads(file.read_text())
        chunks = shards.read_shards(folder, record["shards"])
        is_whole = shards.content_hash(chunks) == record["sha256"] and record["chunks"] == len(chunks)
        parts = sums(folder, "tokenizer/*", "*.arrow")
        record = {name: record[name] for name in ("shards", "chunks", "sha256", "fingerprint")} | {"files": parts}
    except Exception as error:  # pyarrow and datasets have errors of their own
        raise Damaged(file, str(error)) from error
    if not is_whole:
        raise Damaged(file, "its sha256 is not that of the shards")
    with suppress(InputError):  # in a folder that cannot be written to
        write_record(folder / RECORD, record)
    return record


def _write_record(folder: Path, count: int, fingerprint: str, length: int, files: dict[str, str]) -> dict[str, Any]:
    chunks = shards.read_shards(folder, count) if count else []
    if len(chunks) < 2:
        raise InputError(
            f"the text fills {len(chunks)} chunks of {length} tokens, and training needs one beside a held-out one; "
            "give more text or a smaller length"
        )
    sha256 = shards.content_hash(chunks)
    record = {"shards": count, "chunks": len(chunks), "sha256": sha256, "fingerprint": fingerprint}
    write_record(folder / RECORD, record | {"files": files | sums(folder, "tokenizer/*")})
    (folder / PROGRESS).unlink(missing_ok=True)
    return record


def _continued_from(folder: Path, fingerprint: str) -> tuple[shards.Cursor, dict[str, str]]:
    """The end of the last whole shard, and the hashes of the shards up to there.

    Where there is none, or the text has changed, or a file is damaged, the folder is emptied first.
    """
    file = folder / PROGRESS
    try:
        progress = read_record(file) if file.exists() else {}
        if progress.get("fingerprint") == fingerprint:
            check(folder, progress["files"])
            verify(folder / "tokenizer")
            return shards.Cursor(**progress["cursor"]), progress["files"]
    except Damaged as damage:
        damage.warn("the text is packed from its beginning")
    emptied(folder)
    _write_progress(folder, shards.Cursor(), fingerprint, {})
    return shards.Cursor(), {}


def _write_progress(folder: Path, cursor: shards.Cursor, fingerprint: str, files: dict[str, str]) -> None:
    write_record(folder / PROGRESS, {"cursor": asdict(cursor), "fingerprint": fingerprint, "files": files})


def _tokenizer_in(folder: Path, recipe: TokenizerRecipe, bos: bool, texts: Iterable[str]) -> Any:
    """The tokenizer in the folder; it is made of the texts where there is none yet."""
    place = folder / "tokenizer"
    if not place.is_dir():
        tokenizer = recipe.make(texts)
        if bos and tokenizer.bos_token_id is None:
            raise InputError(f"the tokenizer of {recipe} has no BOS token; use bos=False or another tokenizer")
        with replacing(place, shards.FIX) as draft:
            tokenizer.save_pretrained(draft)
            seal(draft)
    return recipe.load(place)


def _counted(texts: Iterable[str], start: int, on_progress: OnProgress) -> Iterator[str]:
    """The texts from number `start` on; each is reported before it is given out."""
    total = len(texts) if isinstance(texts, Sized) else 0
    for i, text in enumerate(texts):
        if i >= start:
            on_progress(i + 1, total)
            yield text
