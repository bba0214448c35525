"""Texts of files, folders and data sets, as a stream.

In Python a `str` is a text, a `Path` a file or a folder, and `texts(...)` the texts of either or of a data set.
"""

import csv
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from io import TextIOWrapper
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, NoReturn, TextIO

from ..checks import InputError, check_count, instance_of, refusal, unicode_text
from ..spec import added_later
from .hub import asking_hub
from .progress import OnProgress, no_progress
from .sources import Source

Row = Mapping[str, object]
HUB = "hub:"  # begins the name of a data set on a command line
ENCODING = "utf-8-sig"  # the mark with which Windows begins a file is not the first token of its text
_PACKED = (".gz", ".zst")


class Texts(Source):
    """The texts or chats in a column of a file or a folder, or of a data set of Hugging Face: `hub`.

    split, config: of a data set. limit: the most texts; None for all. Each iteration reads the source again, as far as
    it is asked. A data set has no fingerprint, so a change of it goes unnoticed: use one that does not change.
    """

    source: str
    column: str = "text"
    split: str = "train"
    hub: bool = added_later(False)
    config: str | None = added_later(None)
    limit: int | None = added_later(None)

    @property
    def path(self) -> Path | None:
        """The file or the folder; None for a data set."""
        return None if self.hub else Path(self.source)

    @property
    def name(self) -> str:
        """The name of the file, the folder or the data set."""
        return self.source if self.path is None else self.path.resolve().name

    @property
    def word(self) -> str:
        """What names it on a command line; see `named_texts`."""
        config = f":{self.config}" if self.config else ""
        return f"{HUB}{self.source}{config}" if self.hub else self.source

    @property
    def outside(self) -> str:
        return self.source

    def __iter__(self) -> Iterator[Any]:
        return islice((text_in(row, self.column, where) for where, row in self._rows()), self.limit)

    def _rows(self) -> Iterator[tuple[Path | str, Row]]:
        """Each row behind the file or the data set that holds it."""
        if self.path is None:
            yield from ((self.source, row) for row in _streamed(self.source, self.config, self.split))
            return
        for file in files_of(self.path):
            yield from ((file, row) for row in rows_of(file))

    def texts(self, cache: Path, on_file: OnProgress = no_progress) -> Iterable[str]:
        what = f"{self.column!r} of {self.source} holds chats; a corpus is made of texts"
        return (instance_of(text, str, what) for text in self)

    def check_text(self) -> None:
        """Raises InputError if all texts are blank. Call it before anything is written."""
        if all(isinstance(text, str) and is_blank(text) for text in self):  # reads up to the first that is not
            raise InputError(f"{self.source} holds no text, or nothing but white space")

    def absolute(self) -> "Texts":
        return self if self.hub else replace(self, source=os.path.abspath(self.source))

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        if self.path is None or not self.path.exists():
            return ""
        for file in files_of(self.path):
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
        return digest.hexdigest()


def texts(source: Path | str, column: str = "text", *, split: str = "train", config: str | None = None) -> Texts:
    """The texts of a data set, wherever a model reads text: `si.measure(model, si.texts("allenai/c4", config="en"))`.

    `source` is the name of a data set of Hugging Face, which `datasets.load_dataset` streams, or a `Path`. A `Path` is
    a file (.jsonl, .json, .txt, .parquet or .csv, packed or not) or a folder of such files. `column` holds texts
    or chats. The paragraphs of a .txt file are its texts. Raises InputError for other sources now, such as a `str` with
    the name of a file, and for what cannot be read when the first text is read.
    """
    instance_of(source, Path | str, "a source is a Path, or the name of a data set")
    instance_of(column, str, "column is a name")
    instance_of(split, str, "split is a name")
    instance_of(config, str | None, "config is a name")
    if isinstance(source, str) and (ending_of(Path(source)) in _READERS or Path(source).is_file()):
        raise InputError(f"{source!r} is not the name of a data set; give the Path of a file, Path({source!r})")
    if isinstance(source, Path) and (split != "train" or config is not None):
        raise InputError("split and config are of a data set of Hugging Face; leave them out for a Path")
    if isinstance(source, Path) and ending_of(source) == ".txt" and column != "text":
        raise InputError(f"{source} is plain text without columns; leave column={column!r} out")
    return Texts(str(source), column, split, isinstance(source, str), config)


def named_texts(word: str, column: str = "text") -> Texts:
    """The texts that a command line names: a file, a folder, or a data set as hub:NAME or hub:NAME:CONFIG."""
    if not word.startswith(HUB):
        return Texts(str(Path(word)), column)
    name, _, config = word.removeprefix(HUB).partition(":")
    return Texts(name, column, hub=True, config=config or None)


def source_of(given: Any, column: str = "text") -> Texts:
    """The texts of a `Path`; those of `texts(...)` as they are."""
    return given if isinstance(given, Texts) else texts(instance_of(given, Path, "a file is a Path"), column)


def ending_of(path: Path) -> str:
    """The ending that says what a file holds, such as .jsonl of texts.jsonl.gz."""
    name = path.name.lower()
    return Path(next((name.removesuffix(packed) for packed in _PACKED if name.endswith(packed)), name)).suffix


def files_of(path: Path) -> list[Path]:
    """The text files in a folder and its subfolders, in the order of their paths. For a file, the file itself.

    Hidden files and folders are left out. Raises InputError for a file of another kind, a folder without text files,
    and one that may not be read.
    """
    with refusal(f"cannot read {path!s:.200}", "give a file of texts or a folder of them", OSError):
        if not path.is_dir():
            if not path.is_file():
                raise FileNotFoundError("there is no such file")
            if ending_of(path) not in _READERS:
                raise InputError(f"{path} is not a {ENDINGS} file; convert it to .jsonl with a text field")
            return [path]
        found = sorted(_inside(path))
    check_count(found, f"{ENDINGS} files in the folder {path}")
    return found


def _inside(folder: Path) -> Iterator[Path]:
    """The text files in a folder. Raises OSError for a subfolder that may not be read."""

    def refuse(error: OSError) -> NoReturn:
        raise error

    for place, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        folders[:] = [name for name in folders if name[0] != "."]
        yield from (Path(place, name) for name in names if name[0] != "." and ending_of(Path(name)) in _READERS)


def rows_of(file: Path) -> Iterator[Row]:
    """The rows of a file, read one by one.

    The paragraphs of a .txt file are rows with one column, `text`. Raises InputError where they cannot be read.
    """
    with refusal(f"cannot read {file}", "give a file with texts"):  # a damaged file can fail in any way
        if not file.stat().st_size:
            raise InputError(f"{file} is empty; give a file with texts")
        for row in _READERS[ending_of(file)](file):
            yield instance_of(row, Mapping, f"the rows of {file} are objects with named columns")


def _streamed(name: str, config: str | None, split: str) -> Iterator[Row]:
    """The rows of a data set of Hugging Face."""
    from datasets import load_dataset
    from datasets.utils.logging import CRITICAL, disable_progress_bar, set_verbosity

    disable_progress_bar()
    set_verbosity(CRITICAL)  # errors that it logs are also raised
    fix = "check the name, the split and the network, or give the Path of a file"
    with refusal(f"cannot stream {split!r} of {name!r}", fix):
        with asking_hub(name) as is_asked:
            if not is_asked:
                raise OSError("the Hub is not reached")
            dataset = load_dataset(name, config, split=split, streaming=True)
        yield from dataset


def _opened(file: Path, newline: str | None = None) -> TextIO:
    """The text of a file, which may be packed."""
    from pyarrow import input_stream

    return TextIOWrapper(input_stream(str(file), compression="detect"), ENCODING, newline=newline)


def _paragraphs(file: Path) -> Iterator[Row]:
    with _opened(file) as lines:
        for is_between, paragraph in groupby(lines, str.isspace):
            if not is_between:
                yield {"text": "".join(paragraph).rstrip("\n")}


def _json_rows(file: Path) -> Iterator[Row]:
    """The rows of a list of texts or of JSON objects, or of an object on each line."""
    with _opened(file) as lines:
        first = lines.readline()
        if first.lstrip().startswith("["):
            yield from ({"text": row} if isinstance(row, str) else row for row in json.loads(first + lines.read()))
            return
        yield from (json.loads(line) for line in chain([first], lines) if not line.isspace())


def _cells(file: Path) -> Iterator[Row]:
    """The rows of a .csv file; every cell is a text. Raises InputError for a row that does not fit its header."""
    csv.field_size_limit(sys.maxsize)
    with _opened(file, newline="") as lines:
        for row in (rows := csv.DictReader(lines, strict=True)):
            if None in row or None in row.values() or len(row) < len(rows.fieldnames or ()):
                raise InputError(f"{file}, line {rows.line_num}: a row has other cells than the header has columns")
            yield row


def _parquet_rows(file: Path) -> Iterator[Row]:
    from pyarrow.parquet import ParquetFile

    for batch in ParquetFile(file).iter_batches(1000):
        yield from batch.to_pylist()


_READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _json_rows,
    ".json": _json_rows,
    ".txt": _paragraphs,
    ".parquet": _parquet_rows,
    ".csv": _cells,
}
ENDINGS = ", ".join(list(_READERS)[:-1]) + " or " + list(_READERS)[-1]


def is_blank(text: str) -> bool:
    """Whether a text holds nothing but white space."""
    return not text or text.isspace()


def text_of_file(path: Path) -> str:
    """The whole text of a file. Raises InputError where it cannot be read as UTF-8."""
    with refusal(f"cannot read {path}", "give a text file in UTF-8", (OSError, ValueError)):
        return path.read_text(encoding=ENCODING)


def is_chat(given: Any) -> bool:
    """Whether something is a list of messages, each with a role and a content."""
    items = given if isinstance(given, list | tuple) else ()
    return bool(items) and all(isinstance(item, Mapping) and {"role", "content"} <= item.keys() for item in items)


def text_in(row: Row, column: str, where: Path | str) -> Any:
    """The text or chat in a column of a row; of a .txt file, its text. Raises InputError, which names the columns."""
    text = row.get("text" if isinstance(where, Path) and ending_of(where) == ".txt" else column)
    if is_chat(text):
        return text
    if not isinstance(text, str):
        has = ", ".join(f"{name!r} ({type(value).__name__})" for name, value in row.items())
        fix = "name the column of its texts, column=..., and leave out rows without a text"
        raise InputError(f"a row of {where} has no text in {column!r}, only {has}; {fix}")
    return unicode_text(text, f"a text of {where}")
