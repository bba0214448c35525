"""Packed text: documents with EOS between them, cut into chunks of equal length that are kept on disk.

The folder of a corpus holds a tokenizer, the ids of all chunks in one file, and a record. The record says how far
packing has come, and holds the hashes of the other files. A program that was killed while it packed is continued by
the next one, behind the last block of ids that the record names.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sized
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Int, Integer
from torch import Tensor

from ..checks import InputError, check_count, refusal, whole_number
from ..files import Damaged, check_hashes, file_hashes, read_record, remove, replacing, sole_writer, write_record
from ..spec import INSIDE, Limits, Spec, added_later
from .draws import HELD_OUT, Sample, Split, TokenChange
from .progress import OnProgress, no_progress
from .sources import Embedded, Source
from .tokenizers import ByteBPE, TokenizerRecipe, beginning_with_bos, check_has, encoded
from .tokens import Tokens

Chunks = Integer[np.ndarray, "chunk pos"]
RECORD, IDS, TOKENIZER = "record.json", "ids.bin", "tokenizer"  # in the folder of a corpus
BLOCK = 1 << 24  # tokens that are written at once; a killed program loses fewer
ROWS = 1 << 13  # chunks that are looked at at once
FIX = "free some space and run it again: what was packed is kept"


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
        unpacked: Any = {each.name: each.default for each in fields(self) if each.name in names}
        return cache / "texts" / replace(self, **unpacked, source=self.source.absolute()).key()

    def prepare(self, cache: Path, on_progress: OnProgress = no_progress) -> "PreparedText":
        """The corpus in `cache`. It is packed there first if it is not complete, from the last block on.

        A corpus with a damaged file is named on standard error and packed again. `on_progress` counts files while the
        embedded text is gathered, then documents while they are packed. Other processes that need the same corpus wait
        until it is packed. Raises InputError for text that cannot be read, does not have `sha256`, or fills fewer than
        two chunks, and for a full disk.
        """
        self.source.check()
        corpus = Corpus(self, self.folder(cache))
        record = corpus.packed(cache, on_progress)
        if self.source.changed_since(record.fingerprint or ""):
            fix = "undo that, or remove the folder"
            raise InputError(f"the text of {corpus.folder} has changed since it was packed; {fix}")
        if self.sha256 not in ("", record.sha256):
            what = f"the text is {record.sha256[:12]}, not {self.sha256[:12]}"
            raise InputError(f"{what}; use that, or leave data.sha256 empty")
        chunks = corpus.chunks(record.chunks)
        trim = partial(trimmed, chunks, corpus.tokenizer().eos_token_id, int(self.bos))
        split = Split.of(len(chunks), self.held_out, self.share, trim)
        return PreparedText(replace(self, sha256=record.sha256), corpus.folder, chunks, split)


@dataclass(frozen=True)
class Cursor:
    """The end of a block: the number of chunks so far, and the document and its token that come next."""

    chunks: int = 0
    document: int = 0
    offset: int = 0


def blocks_of(documents: Iterable[np.ndarray], start: Cursor, rows: int, width: int) -> Iterator[tuple[Chunks, Cursor]]:
    """Blocks of `rows` chunks of `width` tokens, each with its end.

    The last block may have fewer rows, and tokens that fill no chunk are dropped. `documents` begins with document
    `start.document`, whose first `start.offset` tokens are in an earlier block.
    """
    pending: list[np.ndarray] = []
    size, full, done = 0, rows * width, start.chunks
    for document, ids in enumerate(documents, start.document):
        new = ids[start.offset :] if document == start.document else ids
        pending.append(new)
        size += len(new)
        while size >= full:
            flat = np.concatenate(pending)
            pending, size, done = [flat[full:]], size - full, done + rows
            yield flat[:full].reshape(rows, width), Cursor(done, document, len(ids) - size)
    if size >= width:
        flat = np.concatenate(pending)
        yield flat[: size // width * width].reshape(-1, width), Cursor(done + size // width, document + 1)


@dataclass(frozen=True)
class Record(Cursor):
    """How far packing has come, and the hashes of what was written: the files of the tokenizer, and the ids so far."""

    fingerprint: str | None = None  # of the text
    files: Mapping[str, str] = field(default_factory=dict)
    sha256: str = hashlib.sha256().hexdigest()
    whole: bool = False


@dataclass(frozen=True)
class Corpus:
    """The folder of a packed text."""

    recipe: PackedText
    folder: Path

    def chunks(self, n: int) -> Chunks:
        """The first `n` chunks, memory-mapped."""
        return np.memmap(self.folder / IDS, self._dtype, "r", shape=(n, self.recipe.length))

    def tokenizer(self) -> Any:
        """The transformers tokenizer that the text was packed with."""
        return self.recipe.tokenizer.load(self.folder / TOKENIZER)

    def record(self) -> Record:
        """How far packing has come. Raises Damaged where a file is not as it was written."""
        if not (self.folder / RECORD).exists():
            return Record()
        record = Record(**read_record(self.folder / RECORD, of=self._of))
        check_hashes(self.folder, record.files)
        if self._digest(record.chunks).hexdigest() != record.sha256:
            raise Damaged(self.folder / IDS, "it does not hold the ids that were written")
        return record

    def packed(self, cache: Path, on_progress: OnProgress) -> Record:
        """The record of the whole corpus, which is packed first unless it is there.

        A damaged corpus is named on standard error and packed again. Raises InputError for text that fills fewer than
        two chunks, for a tokenizer that lacks the BOS that is wanted, and where a file cannot be written.
        """
        with suppress(Damaged):  # another process may be packing it again
            if (record := self.record()).whole:
                return record
        with sole_writer(self.folder):
            try:
                record = self.record()
            except Damaged as damage:
                damage.warn("the text is packed again")
                next(iter(self.recipe.source.texts(cache)), None)  # raises while the old one is there
                record = Record()
            return record if record.whole else self._pack(cache, on_progress, record)

    @property
    def _of(self) -> dict[str, str | int]:
        """What the files are of: the recipe whose key is the folder's name."""
        return {"corpus": self.folder.name}

    @property
    def _dtype(self) -> np.dtype[Any]:
        """The smallest type that holds every id."""
        return np.dtype("<u2" if self.recipe.vocab <= 1 << 16 else "<i4")

    def _digest(self, n: int) -> Any:
        """The running sha256 of the first `n` chunks, eight little-endian bytes an id.

        Raises Damaged where the file does not hold so many.
        """
        digest, path = hashlib.sha256(), self.folder / IDS
        try:
            with refusal(f"cannot read {path}", of=PermissionError):
                for start in range(0, n, ROWS):
                    digest.update(self.chunks(n)[start : start + ROWS].astype("<i8").tobytes())
        except (FileNotFoundError, ValueError) as error:
            raise Damaged(path, "it is cut off") from error
        return digest

    def _pack(self, cache: Path, on_progress: OnProgress, record: Record) -> Record:
        """Packs the text from where the record ends, or from its beginning if the text is another one since."""
        recipe = self.recipe
        if record.fingerprint != recipe.source.fingerprint():
            record = self._begin(cache, on_progress)
        encoder, width = self.tokenizer(), recipe.length - recipe.bos
        documents = encoded(_counted(recipe.source.texts(cache), record.document, on_progress), encoder)
        digest, dtype = self._digest(record.chunks), self._dtype
        with refusal(f"cannot write {self.folder / IDS}", FIX, OSError), (self.folder / IDS).open("ab") as file:
            file.truncate(record.chunks * recipe.length * dtype.itemsize)  # a killed program may have written more
            for block, end in blocks_of(documents, record, max(1, BLOCK // width), width):
                rows = np.insert(block, 0, encoder.bos_token_id, axis=1) if recipe.bos else block
                file.write(rows.astype(dtype).tobytes())
                file.flush()
                os.fsync(file.fileno())
                digest.update(rows.astype("<i8").tobytes())
                record = self._written(replace(record, **asdict(end), sha256=digest.hexdigest()))
        what = f"chunks of {recipe.length} tokens, of which a longer text or a smaller length makes more"
        check_count(range(record.chunks), what, 2)
        if not _has_words(self.chunks(record.chunks), encoder):
            raise InputError("the texts are empty or blank: they hold nothing but white space")
        return self._written(replace(record, whole=True))

    def _begin(self, cache: Path, on_progress: OnProgress) -> Record:
        """Empties the folder, and makes the tokenizer in it."""
        recipe, fingerprint = self.recipe, self.recipe.source.fingerprint()
        for path in (self.folder / RECORD, *self.folder.iterdir()):  # the record first
            if path.name != "lock":
                remove(path)
        tokenizer = recipe.tokenizer.make(recipe.source.texts(cache, on_progress))
        if recipe.bos:
            check_has("BOS", tokenizer, f"the tokenizer of {recipe.tokenizer}", "use bos=False or another tokenizer")
        with replacing(self.folder / TOKENIZER, FIX) as draft:
            tokenizer.save_pretrained(draft)
        return self._written(Record(fingerprint=fingerprint, files=file_hashes(self.folder, f"{TOKENIZER}/*")))

    def _written(self, record: Record) -> Record:
        write_record(self.folder / RECORD, asdict(record), self._of)
        return record


def _has_words(chunks: Chunks, tokenizer: Any) -> bool:
    """Returns true if some token of the chunks, BOS and EOS apart, is more than white space."""
    ids = (int(i) for start in range(0, len(chunks), ROWS) for i in np.unique(chunks[start : start + ROWS]))
    return any(tokenizer.decode([i], skip_special_tokens=True).strip() for i in ids)


def _counted(texts: Iterable[str], start: int, on_progress: OnProgress) -> Iterator[str]:
    """Yields the texts from number `start` on, and reports each before it is yielded."""
    total = len(texts) if isinstance(texts, Sized) else 0
    for number, text in islice(enumerate(texts, 1), start, None):
        on_progress(number, total)
        yield text


def trimmed(chunks: Chunks, eos: int, start: int, stretch: range) -> range:
    """The chunks of a stretch that share no document with chunks outside it.

    `eos` ends every document. Text begins at token `start` of a chunk, which is 1 where chunks begin with BOS, else 0.
    """

    def text(chunk: int) -> np.ndarray:
        return chunks[chunk, start:]

    first, stop = stretch.start, stretch.stop
    if first and text(first - 1)[-1] != eos:
        first = 1 + next((i for i in stretch if eos in text(i)), stop - 1)
    if stop < len(chunks) and text(stop - 1)[-1] != eos:
        stop = next((i for i in reversed(stretch) if eos in text(i)), first)
    return range(first, stop)


@dataclass(frozen=True)
class PreparedText:
    """A packed corpus that sequences can be drawn from.

    `recipe` names the hash of all ids. `split` says which of the memory-mapped `chunks` are trained on and which are
    held out.
    """

    recipe: PackedText
    folder: Path
    chunks: Chunks
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
        tokenizer = Corpus(self.recipe, self.folder).tokenizer()
        return beginning_with_bos(tokenizer) if self.recipe.bos else tokenizer

    def sample(self, n: int, *stream: Any) -> Tokens:
        """`n` sequences, the same for the same stream: (seed, step) for training, ("held out",) for held-out ones.

        Steps are counted from 1. The steps of a seed run through epochs that each hold every training chunk once.
        Raises InputError where fewer than `n` chunks are held out.
        """
        chunks = self._held_out(n) if stream == HELD_OUT else self.split.batch(n, *stream)
        tokens = torch.from_numpy(self.chunks[chunks.numpy()].astype(np.int64))
        sample = Sample(tokens, chunks, self.vocab, stream)
        for change in self.recipe.edits:
            sample = replace(sample, tokens=change(sample))
        return sample.tokens

    def _held_out(self, n: int) -> Int[Tensor, " {n}"]:
        if n > len(self.split.held_out):
            there_are = f"{len(self.split.held_out)} of {len(self.chunks)} chunks are held out"
            raise InputError(f"{there_are}, not {n}; raise held_out (now {self.recipe.held_out}) or give more text")
        return self.split.held_out[:n]
