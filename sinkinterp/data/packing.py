"""Packed text: documents with EOS between them, cut into chunks that are fixed for ever and kept as Arrow files."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from jaxtyping import Int
from torch import Tensor

from ..errors import InputError
from ..spec import Spec, later
from .sources import Embedded, OnProgress, Source
from .stream import HELD_OUT, Draw, Split, StreamEdit, Tokens
from .tokenisers import ByteBPE, TokenizerRecipe, beginning_with_bos


@dataclass(frozen=True)
class PackedText(Spec):
    """A corpus cut into chunks of `length` tokens, no document masked from the next, the remainder dropped.

    With `bos` every chunk begins with BOS. `held_out` is the share of chunks that no training sees, in stretches that
    lose their ends: no document is both held out and trained on, unless all fill whole stretches. `share` is the part
    of the others that training does see (smaller ones are nested in larger), `edits` what is done to each draw.
    `sha256` is the hash of all ids; one that is given is held to, an empty one is filled in from the text.
    """

    source: Source = Embedded()
    tokenizer: TokenizerRecipe = ByteBPE()
    length: int = 256
    bos: bool = False
    held_out: float = 0.05
    share: float = 1.0
    edits: tuple[StreamEdit, ...] = ()
    sha256: str = later("")

    def __post_init__(self) -> None:
        if self.length < 2 + self.bos:
            raise InputError(f"a chunk needs 2 tokens beside BOS; got length={self.length}")
        if not (0 < self.held_out < 1 and 0 < self.share <= 1):
            raise InputError(f"held_out and share lie between 0 and 1; got {self.held_out} and {self.share}")
        for edit in self.edits:
            edit.check(self.vocab, self.length)

    @property
    def vocab(self) -> int:
        """How many symbols the model must hold."""
        return self.tokenizer.vocab

    def folder(self, cache: Path) -> Path:
        """Where the chunks lie: recipes that differ only in what is drawn, and how it is edited, share them."""
        drawn = {name: getattr(PackedText, name) for name in ("held_out", "share", "edits", "sha256")}
        return cache / "texts" / replace(self, **drawn).key()

    def prepare(self, cache: Path, on_progress: OnProgress = lambda done, of: None) -> "PreparedText":
        """The corpus, found in `cache`, or packed there from the last whole shard on.

        `on_progress` is told of files while the embedded text is gathered, then of documents while they are packed.
        Raises InputError for text that cannot be read, is not that of `sha256`, or fills fewer than two chunks, and for
        a full disk.
        """
        from . import shards, writing

        folder = self.folder(cache)
        record = writing.record_of(folder)
        if not record:
            folder.mkdir(parents=True, exist_ok=True)
            with FileLock(folder / "lock"):
                record = writing.record_of(folder) or writing.pack(
                    folder, cache, self.source, self.tokenizer, self.length, self.bos, on_progress
                )
        if self.source.changed_since(record["fingerprint"]):
            raise InputError(f"the text of {folder} has changed since it was packed; undo that, or remove the folder")
        if self.sha256 not in ("", record["sha256"]):
            raise InputError(
                f"the text here is packed text {record['sha256'][:12]}, not {self.sha256[:12]}; use the one that was "
                "packed then, or leave data.sha256 empty"
            )
        chunks = shards.read(folder, record["shards"])
        trim = partial(trimmed, chunks, self.tokenizer.load(folder / "tokenizer").eos_token_id, int(self.bos))
        split = Split.of(len(chunks), self.held_out, self.share, trim)
        return PreparedText(replace(self, sha256=record["sha256"]), folder, chunks, split)


def trimmed(chunks: Any, eos: int, start: int, stretch: range) -> range:
    """The chunks of a stretch that share no document with those outside it.

    Documents end with `eos`; text begins at token `start` of a chunk, behind BOS where there is one.
    """

    def text(chunk: int) -> np.ndarray:
        return chunks[chunk]["tokens"][start:]

    first, stop = stretch.start, stretch.stop
    if first and text(first - 1)[-1] != eos:
        first = 1 + next((i for i in stretch if eos in text(i)), stop - 1)
    if stop < len(chunks) and text(stop - 1)[-1] != eos:
        stop = next((i for i in reversed(stretch) if eos in text(i)), first)
    return range(first, stop)


@dataclass(frozen=True)
class PreparedText:
    """A packed corpus that can be drawn from: its recipe, which names the hash of all its ids, and its folder.

    `chunks` is the whole memory-mapped `datasets.Dataset`, with one column, "tokens"; `split` says what is drawn.
    """

    recipe: PackedText
    folder: Path
    chunks: Any
    split: Split

    @property
    def sha256(self) -> str:
        """The hash of all its ids."""
        return self.recipe.sha256

    @property
    def vocab(self) -> int:
        """How many symbols the model must hold."""
        return self.recipe.vocab

    @property
    def length(self) -> int:
        """Tokens per sequence, the last target included."""
        return self.recipe.length

    @property
    def title(self) -> str:
        """What a report calls its sequences."""
        return f"chunks of packed text {self.sha256[:12]}"

    def tokenizer(self) -> Any:
        """The transformers tokenizer that the text was packed with; it begins with BOS where chunks do."""
        found = self.recipe.tokenizer.load(self.folder / "tokenizer")
        return beginning_with_bos(found) if self.recipe.bos else found

    def sample(self, n: int, *stream: Any) -> Tokens:
        """`n` sequences, the same for the same stream: of a (seed, step), or held-out ones for ("held out",).

        Steps count from 1; the steps of a seed run through epochs that each hold every training chunk once. Raises
        InputError where fewer than `n` chunks are held out.
        """
        chunks = self._held_out(n) if stream == (HELD_OUT,) else self.split.batch(n, *stream)
        tokens = torch.from_numpy(self.chunks[chunks.tolist()]["tokens"]).long()
        draw = Draw(tokens, chunks, self.vocab, stream)
        for edit in self.recipe.edits:
            draw = replace(draw, tokens=edit(draw))
        return draw.tokens

    def _held_out(self, n: int) -> Int[Tensor, "{n}"]:
        if n > len(self.split.held_out):
            raise InputError(
                f"{n} held-out sequences were asked for and {len(self.split.held_out)} of {len(self.chunks)} chunks "
                f"are held out; raise held_out (now {self.recipe.held_out}) or give more text"
            )
        return self.split.held_out[:n]
