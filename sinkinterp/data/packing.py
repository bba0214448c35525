"""Packed text: documents with EOS between them, cut into chunks of equal length that are kept on disk."""

from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from ..checks import InputError, whole_number
from ..spec import INSIDE, Limits, Spec, added_later
from .backcopy import Sample, TokenChange
from .draws import HELD_OUT, Split
from .progress import OnProgress, no_progress
from .sources import Embedded, Source
from .tokenizers import ByteBPE, TokenizerRecipe, beginning_with_bos
from .tokens import Tokens


class PackedText(Spec):
    """A corpus cut into chunks of `length` tokens.

    Documents in one chunk can attend to each other. Tokens at the end that do not fill a chunk are dropped. With `bos`
    every chunk begins with BOS. `held_out` is the share of chunks that training never sees. These form stretches. The
    ends of stretches are left out, so a document is not both held out and trained on. (It may be, if every stretch is
    within one document, or if a document comes twice.) `share` is the part of the other chunks that training sees. A
    larger share contains a smaller one. `edits` change every sample. `sha256` is the hash of all ids. If it is given,
    another text is refused. If it is empty, `prepare` fills it in.
    """

    limits: ClassVar[Limits] = {"held_out": INSIDE, "share": {"above": 0, "most": 1}}

    source: Source = Embedded()
    tokenizer: TokenizerRecipe = ByteBPE()
    length: int = 256
    bos: bool = False
    held_out: float = 0.05
    share: float = 1.0
    edits: tuple[TokenChange, ...] = ()
    sha256: str = added_later("")

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number(self.length, "length of a chunk, 2 tokens beside BOS,", 2 + self.bos)
        for change in self.edits:
            change.check(self.vocab, self.length)

    @property
    def vocab(self) -> int:
        """How many symbols the model must have."""
        return self.tokenizer.vocab

    @property
    def outside(self) -> str:
        """The file, dataset or tokenizer that it reads from outside the installation; empty for none."""
        return self.source.outside or self.tokenizer.outside

    def folder(self, cache: Path) -> Path:
        """The folder of the chunks. Recipes that differ only in how chunks are drawn or edited share it."""
        names = ("held_out", "share", "edits", "sha256")
        unpacked: Any = {field.name: field.default for field in fields(self) if field.name in names}
        return cache / "texts" / replace(self, **unpacked, source=self.source.absolute()).key()

    def prepare(self, cache: Path, on_progress: OnProgress = no_progress) -> "PreparedText":
        """The corpus in `cache`. It is packed there first if it is not complete, after the last whole shard.

        A corpus with a damaged file is named on standard error and packed again. `on_progress` counts files while the
        embedded text is gathered, then documents while they are packed. Other processes that need the same corpus wait
        until it is packed. Raises InputError for text that cannot be read, does not have `sha256`, or fills fewer than
        two chunks, and for a full disk.
        """
        from .corpus_folder import packed, read_shards  # `datasets` takes a second to import; recipes do not need it

        self.source.check()
        folder = self.folder(cache)
        record = packed(self, folder, cache, on_progress)
        if self.source.changed_since(record["fingerprint"]):
            raise InputError(f"the text of {folder} has changed since it was packed; undo that, or remove the folder")
        if self.sha256 not in ("", here := record["sha256"]):
            raise InputError(f"the text is {here[:12]}, not {self.sha256[:12]}; use that, or leave data.sha256 empty")
        chunks = read_shards(folder, record["shards"])
        trim = partial(trimmed, chunks, self.tokenizer.load(folder / "tokenizer").eos_token_id, int(self.bos))
        split = Split.of(len(chunks), self.held_out, self.share, trim)
        return PreparedText(replace(self, sha256=here), folder, chunks, split)


def trimmed(chunks: Any, eos: int, start: int, stretch: range) -> range:
    """The chunks of a stretch that share no document with chunks outside it.

    `eos` ends every document. Text begins at token `start` of a chunk, which is 1 where chunks begin with BOS, else 0.
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
    """A packed corpus that sequences can be drawn from.

    `recipe` names the hash of all ids. `chunks` is a memory-mapped `datasets.Dataset` of all chunks, with one column,
    "tokens". `split` says which chunks are trained on and which are held out.
    """

    recipe: PackedText
    folder: Path
    chunks: Any
    split: Split

    @property
    def sha256(self) -> str:
        """The hash of all ids."""
        return self.recipe.sha256

    @property
    def vocab(self) -> int:
        """How many symbols the model must have."""
        return self.recipe.vocab

    @property
    def length(self) -> int:
        """Tokens per sequence, the last target included."""
        return self.recipe.length

    @property
    def title(self) -> str:
        """What a report calls the sequences."""
        return f"chunks of packed text {self.sha256[:12]}"

    def tokenizer(self) -> Any:
        """The transformers tokenizer of the corpus. It begins texts with BOS where chunks begin with BOS."""
        tokenizer = self.recipe.tokenizer.load(self.folder / "tokenizer")
        return beginning_with_bos(tokenizer) if self.recipe.bos else tokenizer

    def sample(self, n: int, *stream: Any) -> Tokens:
        """`n` sequences, the same for the same stream: (seed, step) for training, ("held out",) for held-out ones.

        Steps are counted from 1. The steps of a seed run through epochs that each hold every training chunk once.
        Raises InputError where fewer than `n` chunks are held out.
        """
        chunks = self._held_out(n) if stream == HELD_OUT else self.split.batch(n, *stream)
        tokens = torch.from_numpy(self.chunks[chunks.tolist()]["tokens"]).long()
        sample = Sample(tokens, chunks, self.vocab, stream)
        for change in self.recipe.edits:
            sample = replace(sample, tokens=change(sample))
        return sample.tokens

    def _held_out(self, n: int) -> Int[Tensor, " {n}"]:
        if n > len(self.split.held_out):
            there_are = f"{len(self.split.held_out)} of {len(self.chunks)} chunks are held out"
            raise InputError(f"{there_are}, not {n}; raise held_out (now {self.recipe.held_out}) or give more text")
        return self.split.held_out[:n]
