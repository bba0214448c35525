"""Texts of files, folders and datasets of the Hub, read through `datasets`, as one stream or by domain.

Files may be packed; folders may be those that `save_to_disk` of `datasets` writes.
"""

import csv
import errno
import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import chain, dropwhile, filterfalse, groupby, islice, takewhile
from pathlib import Path
from typing import TextIO

from ..checks import InputError, check_count, each_once, instance_of, refusal, refusing, unicode_text
from .hub import check_dataset

Row = Mapping[str, object]
ENCODING = "utf-8-sig"  # the mark with which Windows begins a file is not the first token of its text
_PACKED = (".gz", ".zst")
_SAVED = ("state.json", "dataset_dict.json")  # which `save_to_disk` writes beside a dataset, or several splits


def ending_of(path: Path) -> str:
    """The ending that says what a file holds, such as .jsonl of texts.jsonl.gz."""
    name = path.name.strip().lower()
    return Path(next((name.removesuffix(packed) for packed in _PACKED if name.endswith(packed)), name)).suffix


def is_read(path: Path) -> bool:
    """Returns true for files that are read, by their ending."""
    return ending_of(path) in _READERS


def is_saved_dataset(folder: Path) -> bool:
    """Whether `save_to_disk` wrote a folder."""
    return any((folder / name).is_file() for name in _SAVED)


def files_of(path: Path) -> list[Path]:
    """The text files in a folder and its subfolders, in the order of their paths. For a file, the file itself.

    A folder of `save_to_disk` counts as a file. Hidden files and folders are left out. Raises InputError for a
    folder without text files, and for one that may not be read, also inside.
    """
    _check_open(path)
    if is_saved_dataset(path):
        return [path]
    if not path.is_dir():
        _check_file(path)
        return [path]
    inside = [file for file in path.rglob("*") if not any(part[0] == "." for part in file.relative_to(path).parts)]
    for folder in inside:  # whose files `rglob` leaves out without a word
        _check_open(folder)
    saved = {file for file in inside if is_saved_dataset(file)}
    files = [file for file in inside if file in saved or (is_read(file) and not file.is_dir())]
    files = sorted(file for file in files if saved.isdisjoint(file.parents))
    for file in filterfalse(saved.__contains__, files):
        _check_file(file)
    check_count(files, f"{ENDINGS} files in the folder {path}")
    return files


def _check_open(path: Path) -> None:
    """Raises InputError for a folder that may not be read, and for a name that no file can have."""
    with refusal(f"cannot read {path!s:.80}", "give the path of a file", OSError):
        if path.is_dir() and not os.access(path, os.R_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "permission denied", str(path))


@refusing
def _check_file(path: Path) -> Iterator[str]:
    """Raises InputError for a path that is not a file of texts."""
    if path.is_symlink() and not path.exists():
        yield f"{path} is a link that leads to no file; mend it"
    if not path.exists():
        yield f"there is no file {path}; check the path"
    if not path.is_file():
        yield f"{path} is a device or a pipe, not a file; give a file with texts"
    if not is_read(path):
        yield f"{path} is not a {ENDINGS} file; convert it to .jsonl with a text field"


def rows_of(file: Path, split: str = "train") -> Iterator[Row]:
    """The rows of a file or a saved dataset, read one by one; `split` chooses among several that were saved.

    The paragraphs of a .txt file are rows with one column, `text`. Raises InputError where they cannot be read.
    """
    if file.is_file() and not file.stat().st_size:
        raise InputError(f"{file} is empty; give a file with texts")
    kind = "folder of save_to_disk" if file.is_dir() else f"{''.join(file.suffixes[-2:])} file"
    with refusal(f"cannot read {file}", f"is it a {kind}?"):  # a damaged file can fail in any way
        for row in _saved_rows(file, split) if file.is_dir() else _READERS[ending_of(file)](file):
            yield instance_of(row, Mapping, f"the rows of {file} are objects with named columns")


def _saved_rows(folder: Path, split: str) -> Iterator[Row]:
    from datasets import DatasetDict, load_from_disk

    silence_datasets()
    dataset = load_from_disk(str(folder))
    if isinstance(dataset, DatasetDict):
        if split not in dataset:
            raise InputError(f"{folder} holds {', '.join(dataset)}, and no {split!r}; give the folder of one of them")
        dataset = dataset[split]
    yield from dataset


def _opened(file: Path, newline: str | None = None) -> TextIO:
    """The text of a file, which may be packed."""
    from pyarrow import input_stream

    return TextIOWrapper(input_stream(str(file), compression="detect"), ENCODING, newline=newline)


def _paragraphs(file: Path) -> Iterator[Row]:
    in_lines = lines_of(file)
    yield from ({"text": line} for line in in_lines)
    with _opened(file) as lines:
        for is_blank, paragraph in groupby(lines, str.isspace):
            if not is_blank and not in_lines:
                yield {"text": "".join(paragraph).rstrip("\n")}


def lines_of(file: Path) -> list[str]:
    """The texts of a .txt file with one on each line, of two words or more; empty for paragraphs and a wrapped text."""
    if ending_of(file) != ".txt" or not file.is_file():
        return []
    with _opened(file) as opened:
        lines = list(takewhile(lambda line: not line.isspace(), dropwhile(str.isspace, opened)))
        are_long = len(lines) > 1 and all(len(line.split()) > 1 and not line[0].isspace() for line in lines)
        if not are_long or not all(map(str.isspace, opened)):
            return []
    begins, width = [line.split()[0] for line in lines[1:]], max(map(len, lines))
    is_full = all(len(line) + len(word) > 0.8 * width for line, word in zip(lines, begins, strict=False))
    return [] if is_full and any(word[0].islower() for word in begins) else [line.rstrip("\n") for line in lines]


def _json_rows(file: Path) -> Iterator[Row]:
    """The rows of a list of texts or of JSON objects, or of an object on each line."""
    with _opened(file) as lines:
        first = lines.readline()
        if first.lstrip().startswith("["):
            yield from ({"text": row} if isinstance(row, str) else row for row in json.loads(first + lines.read()))
            return
        for number, line in enumerate(chain([first], lines), 1):
            with refusal(f"cannot read {file}, line {number}", "every line should hold a JSON object"):
                if not line.isspace():
                    yield json.loads(line)


def _cells(file: Path) -> Iterator[Row]:
    """The rows of a .csv file; every cell is a text. Raises InputError for a row that does not fit its header."""
    csv.field_size_limit(sys.maxsize)
    with _opened(file, newline="") as lines:
        rows = csv.reader(lines, strict=True)
        header = next(rows, [])
        if len(set(header)) < len(header) or (len(header) == 1 and not {";", "\t"}.isdisjoint(header[0])):
            named = ", ".join(map(repr, header))
            raise InputError(f"the columns of {file}, {named:.80}, have commas between them and names of their own")
        for cells in filter(None, rows):
            if len(cells) != len(header):
                fix = 'give it a cell for each column, with "..." around a text that holds commas'
                names = f"{len(header)} columns ({', '.join(header)})"
                raise InputError(f"{file}, line {rows.line_num}: {len(cells)} cells for {names}; {fix}")
            yield dict(zip(header, cells, strict=True))


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


def silence_datasets() -> None:
    """Turns the progress bars and the log of `datasets` off. Errors that it logs are also raised."""
    from datasets.utils.logging import CRITICAL, disable_progress_bar, set_verbosity

    disable_progress_bar()
    set_verbosity(CRITICAL)


CHATS = ("messages", "conversations")  # columns of chats
_DOCUMENTS = {".md", ".pdf", ".docx", ".html", ".tsv", ".xml", ".gz", ".zip", ".tex", ".log", ".rst", ".epub"}  # unread
_DATASET = re.compile(r"[\w-][\w.-]*/[\w.-]+(:[\w.-]+)?")  # OWNER/NAME on the Hub, with its configuration
_RELATIVE = (f".{os.sep}", f"..{os.sep}", f"~{os.sep}")
_OR_LOCAL = f"or give a {ENDINGS} file, a folder of them, or no text at all for the embedded docstrings"


def texts_of(source: Path | str, column: str = "text", split: str = "train") -> Iterator[str]:
    """The texts of a file, of the files in a folder and its subfolders (in the order of their paths), or of a dataset.

    The texts of a .txt file are its paragraphs, with blank lines between them, or its lines (see `lines_of`). Other
    files (.jsonl, .json, .parquet, .csv), and folders of `save_to_disk`, hold texts in `column`. `split` names the part
    of a folder that is read. Files may be packed (.gz, .zst). A string OWNER/NAME or OWNER/NAME:CONFIG that is not a
    path (see `is_path`) names a dataset on the Hub, whose `split` is streamed. Any other string is one text itself.
    Raises InputError for a missing or unreadable source, when the first text is read.
    """
    if is_text(source):
        yield str(source)
        return
    if not is_path(source):
        for row in _dataset_rows(str(source), split):
            yield text_in(row, column, source)
        return
    for file in files_of(Path(source)):
        name = "text" if ending_of(file) == ".txt" else column
        for row in rows_of(file, split):
            yield text_in(row, name, file)


def check_readable(source: Path | str, column: str = "text") -> None:
    """Raises InputError if all texts are blank. Call it before anything is written."""
    if all(map(is_blank, texts_of(source, column))):  # reads no further than the first that is not
        raise InputError(f"{source} holds no text, or nothing but white space; give a file with texts")


def is_blank(text: str) -> bool:
    """Whether a text holds nothing but white space."""
    return not text or text.isspace()


def text_of_file(path: Path) -> str:
    """The whole text of a file. Raises InputError where it cannot be read as UTF-8."""
    with refusal(f"cannot read {path}", "give a text file in UTF-8", (OSError, ValueError)):
        return path.read_text(encoding=ENCODING)


def is_text(source: Path | str) -> bool:
    """Whether `source` is a text itself: a string that is neither a path (see `is_path`) nor OWNER/NAME."""
    return isinstance(source, str) and not is_path(source) and not _DATASET.fullmatch(source)


def is_path(source: Path | str) -> bool:
    """Returns true for a path: a Path, a string that exists, or one that looks like a path or a text file."""
    instance_of(source, str | Path, "a source of texts is a file, a folder, the name of a dataset or the text itself")
    path = Path(source)
    is_word = not any(map(str.isspace, str(source)))
    begins_so = path.is_absolute() and (is_word or _exists(Path(*path.parts[:2])))  # else code, such as "// comment"
    looks_so = begins_so or str(source).startswith(_RELATIVE) or is_read(path)
    looks_so |= is_word and (path.suffix.lower() in _DOCUMENTS or str(source).endswith(os.sep))
    return isinstance(source, Path) or looks_so or (bool(source) and _exists(path))  # Path("") is the folder we are in


def names_file(text: str) -> bool:
    """Returns true if a text is the name of a file, such as essay.txt."""
    path = Path(text.strip())
    return bool(path.suffix) and _exists(path) and path.is_file()


def _exists(path: Path) -> bool:
    try:
        return path.exists() or path.is_symlink()  # a link that leads nowhere is not a text
    except (OSError, ValueError):  # a text may be too long for a file name, or hold a null character
        return False


def text_in(row: Mapping[str, object], column: str, source: Path | str) -> str:
    """The text in a column of a row. Raises InputError, which names the row's columns, where it holds no text."""
    text = row.get(column)
    if not isinstance(text, str):
        chats = next((name for name in CHATS if name in row), None)
        if chats is not None and column == "text":
            raise InputError(f"the rows of {source} hold chats, {chats!r}, and no text; give the messages of each row")
        lengths = {name: len(value) for name, value in row.items() if isinstance(value, str)}
        fitting = max(lengths, key=lengths.__getitem__, default=None)
        fix = "give its texts as strings" if fitting is None else f"name the column: column={fitting!r}"
        if not is_text(source) and is_path(source) and ending_of(Path(source)) == ".csv":
            fix += ", or begin the file with a line that names the columns"
        fix = "leave out rows without a text" if column in row and text is None else fix
        raise InputError(f"a row of {source} has no string in {column!r}, only {columns_in(row)}; {fix}")
    return unicode_text(text, f"a text of {source}")


def columns_in(row: Mapping[str, object]) -> str:
    """The columns of a row with their types, for an error message."""
    return ", ".join(f"{name!r} ({type(value).__name__})" for name, value in row.items())


def _dataset_rows(name: str, split: str) -> Iterator[Mapping[str, object]]:
    """The rows of a dataset on the Hub, streamed."""
    from datasets import load_dataset
    from datasets.exceptions import DatasetNotFoundError

    silence_datasets()
    repository, _, config = name.partition(":")
    check_dataset(name, _OR_LOCAL)
    any_error = refusal(f"cannot stream {split!r} of {name!r}", f"name another split or NAME:CONFIG, {_OR_LOCAL}")
    log_in = f"log in to the Hub, {_OR_LOCAL}"
    with any_error, refusal(f"the dataset {name!r} is closed to you", log_in, DatasetNotFoundError):
        yield from load_dataset(repository, config or None, split=split, streaming=True)


@dataclass(frozen=True)
class DomainTexts:
    """The texts of one source, at most `limit` of them. Each iteration reads the source again."""

    source: Path | str
    column: str = "text"
    limit: int | None = None

    def __iter__(self) -> Iterator[str]:
        return islice(texts_of(self.source, self.column), self.limit)


def domains_of(
    source: Path | str | Sequence[Path | str], column: str = "text", field: str = "domain", limit: int | None = None
) -> Mapping[str, Iterable[str]]:
    """Texts by domain, at most `limit` for each.

    Several sources (files, folders or names of datasets; see `texts_of`) are a domain each, in the order given. The
    files and subfolders of a folder are a domain each, in the order of their names. Both are read when their texts are
    used. The rows of a single file name their domain in its column `field`. That file is read immediately, and its
    domains are in the order in which they first occur. Raises InputError for a source without domains, for two domains
    of one name, and for a row that does not name its domain.
    """
    if not isinstance(source, Path | str):
        return _domain_per_source(list(source), column, limit)
    if not is_path(source):
        raise InputError(f"the dataset {source!r} is one domain; give several names, or a file with a column {field!r}")
    path = Path(source)
    if path.is_dir():
        members: list[Path | str] = sorted({path / file.relative_to(path).parts[0] for file in files_of(path)})
        return _domain_per_source(members, column, limit)
    return _grouped_rows(path, column, field, limit)


def _domain_per_source(sources: Sequence[Path | str], column: str, limit: int | None) -> Mapping[str, Iterable[str]]:
    check_count(sources, "domains: files, folders or names of datasets")
    names = list(map(_domain_name, sources))
    each_once(names, "the name of a domain, which is that of its file or folder,")
    return {name: DomainTexts(source, column, limit) for name, source in zip(names, sources, strict=True)}


def _domain_name(source: Path | str) -> str:
    if not is_path(source):
        return str(source)
    path = Path(source).resolve()
    return path.name if path.is_dir() else path.stem


def _grouped_rows(path: Path, column: str, field: str, limit: int | None) -> Mapping[str, Iterable[str]]:
    domains: defaultdict[str, list[str]] = defaultdict(list)
    (file,) = files_of(path)
    for row in rows_of(file):
        name = row.get(field)
        if not isinstance(name, str | int):
            raise InputError(f"a row of {file} names no domain in {field!r}, only {columns_in(row)}; name the column")
        if limit is None or len(domains[str(name)]) < limit:
            domains[str(name)].append(text_in(row, column, file))
    check_count(domains, f"rows of {file}")
    return dict(domains)
