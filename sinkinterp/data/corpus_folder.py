"""The folder of a packed corpus: its tokenizer, its shards and its record.

A program that was killed while it wrote the folder is continued by the next one, after the last whole shard.
"""

import json
from collections.abc import Iterable, Iterator, Sized
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from ..files import remove, replacing, write_json
from . import shards
from .progress import OnProgress
from .sources import Source
from .tokenisers import TokenizerRecipe, encoded

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
    start = end = _continued_from(folder, fingerprint)
    encoder = _tokenizer_in(folder, tokenizer, bos, source.texts(cache, on_progress))
    documents = encoded(_counted(source.texts(cache), start.document, on_progress), encoder)
    for chunks, end in shards.shards_of(documents, start, max(1, SHARD // width), width):
        rows = np.insert(chunks, 0, encoder.bos_token_id, axis=1) if bos else chunks
        shards.write_shard(shards.shard_path(folder, end.shards - 1), rows, shards.columns(tokenizer.vocab, length))
        _write_cursor(folder, end, fingerprint)
    return _write_record(folder, end.shards, fingerprint, length)


def record_of(folder: Path) -> dict[str, Any]:
    """The record of the corpus in `folder`: shards, chunks, sha256, fingerprint. Empty where packing has not ended."""
    file = folder / "packed.json"
    return json.loads(file.read_text()) if file.is_file() else {}


def _write_record(folder: Path, count: int, fingerprint: str, length: int) -> dict[str, Any]:
    chunks = shards.read_shards(folder, count) if count else []
    if len(chunks) < 2:
        raise InputError(
            f"the text fills {len(chunks)} chunks of {length} tokens, and training needs one beside a held-out one; "
            "give more text or a smaller length"
        )
    record = {"shards": count, "chunks": len(chunks), "sha256": shards.content_hash(chunks), "fingerprint": fingerprint}
    write_json(folder / "packed.json", record)
    _cursor_file(folder).unlink()
    return record


def _continued_from(folder: Path, fingerprint: str) -> shards.Cursor:
    """The end of the last whole shard. Where there is none, or the text has changed, the folder is emptied first."""
    file = _cursor_file(folder)
    if file.is_file():
        state = json.loads(file.read_text())
        if state.pop("fingerprint") == fingerprint:
            return shards.Cursor(**state)
    remove(folder / "tokenizer")
    for shard in folder.glob("*.arrow"):
        shard.unlink()
    _write_cursor(folder, shards.Cursor(), fingerprint)
    return shards.Cursor()


def _cursor_file(folder: Path) -> Path:
    return folder / "cursor.json"


def _write_cursor(folder: Path, cursor: shards.Cursor, fingerprint: str) -> None:
    write_json(_cursor_file(folder), asdict(cursor) | {"fingerprint": fingerprint})


def _tokenizer_in(folder: Path, recipe: TokenizerRecipe, bos: bool, texts: Iterable[str]) -> Any:
    """The tokenizer in the folder; it is made of the texts where there is none yet."""
    place = folder / "tokenizer"
    if not place.is_dir():
        tokenizer = recipe.make(texts)
        if bos and tokenizer.bos_token_id is None:
            raise InputError(f"the tokenizer of {recipe} has no BOS token; use bos=False or another tokenizer")
        with replacing(place, shards.FIX) as draft:
            tokenizer.save_pretrained(draft)
    return recipe.load(place)


def _counted(texts: Iterable[str], start: int, on_progress: OnProgress) -> Iterator[str]:
    """The texts from number `start` on; each is reported before it is given out."""
    total = len(texts) if isinstance(texts, Sized) else 0
    for i, text in enumerate(texts):
        if i >= start:
            on_progress(i + 1, total)
            yield text
