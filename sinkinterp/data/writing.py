"""Packing a corpus into a folder, in reading order: tokenizer, shards, record. What a kill leaves is taken up again."""

import json
import shutil
from collections.abc import Iterable, Iterator, Sized
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from ..files import replacing, write_json
from . import shards
from .sources import OnProgress, Source
from .tokenisers import TokenizerRecipe, tokenised

SHARD = 1 << 24  # tokens per file, and so the most that a kill costs


def pack(
    folder: Path,
    cache: Path,
    source: Source,
    tokenizer: TokenizerRecipe,
    length: int,
    bos: bool,
    on_progress: OnProgress,
) -> dict[str, Any]:
    """The record of the corpus that `folder` holds afterwards; `PackedText` says what the rest is.

    Raises InputError for text that fills fewer than two chunks, for a tokenizer without the BOS that is asked for, and
    where a file cannot be written.
    """
    fingerprint, width = source.fingerprint(), length - bos
    start = end = _taken_up(folder, fingerprint)
    encoder = _tokenizer(folder, tokenizer, bos, source.texts(cache, on_progress))
    documents = tokenised(_told(source.texts(cache), start.document, on_progress), encoder)
    for chunks, end in shards.shards_of(documents, start, max(1, SHARD // width), width):
        rows = np.insert(chunks, 0, encoder.bos_token_id, axis=1) if bos else chunks
        shards.write(shards.path_of(folder, end.shards - 1), rows, shards.features(tokenizer.vocab, length))
        write_json(folder / "cursor.json", asdict(end) | {"fingerprint": fingerprint})
    return _recorded(folder, end.shards, fingerprint, length)


def record_of(folder: Path) -> dict[str, Any]:
    """What is known of the finished corpus in `folder`: shards, chunks, sha256, fingerprint. Empty until it is."""
    record = folder / "packed.json"
    return json.loads(record.read_text()) if record.is_file() else {}


def _recorded(folder: Path, count: int, fingerprint: str, length: int) -> dict[str, Any]:
    chunks = shards.read(folder, count) if count else []
    if len(chunks) < 2:
        raise InputError(
            f"the text fills {len(chunks)} chunks of {length} tokens, and training needs one beside a held-out one; "
            "give more text or a smaller length"
        )
    record = {"shards": count, "chunks": len(chunks), "sha256": shards.content_hash(chunks), "fingerprint": fingerprint}
    write_json(folder / "packed.json", record)
    (folder / "cursor.json").unlink()
    return record


def _taken_up(folder: Path, fingerprint: str) -> shards.Cursor:
    """Where the last whole shard ends; the beginning where there is none, or where the text has changed since."""
    kept = folder / "cursor.json"
    if kept.is_file():
        state = json.loads(kept.read_text())
        if state.pop("fingerprint") == fingerprint:
            return shards.Cursor(**state)
    shutil.rmtree(folder / "tokenizer", ignore_errors=True)
    for shard in folder.glob("*.arrow"):
        shard.unlink()
    write_json(kept, asdict(shards.Cursor()) | {"fingerprint": fingerprint})
    return shards.Cursor()


def _tokenizer(folder: Path, recipe: TokenizerRecipe, bos: bool, texts: Iterable[str]) -> Any:
    """The tokenizer of the folder, made first where it holds none."""
    kept = folder / "tokenizer"
    if not kept.is_dir():
        made = recipe.make(texts)
        if bos and made.bos_token_id is None:
            raise InputError(f"the tokenizer of {recipe} has no BOS token; use bos=False or another tokenizer")
        with replacing(kept, shards.AGAIN) as draft:
            made.save_pretrained(draft)
    return recipe.load(kept)


def _told(texts: Iterable[str], start: int, on_progress: OnProgress) -> Iterator[str]:
    """The texts from number `start` on, each announced."""
    of = len(texts) if isinstance(texts, Sized) else 0
    for i, text in enumerate(texts):
        if i >= start:
            on_progress(i + 1, of)
            yield text
