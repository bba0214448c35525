"""The rows of text files, plain or packed, and of the folders that `save_to_disk` of `datasets` writes."""

import atexit
import csv
import glob
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from io import TextIOWrapper
from itertools import groupby
from pathlib import Path
from typing import TextIO

from ..checks import READABLE, InputError, check_count, refusal, refusing

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
    for file in files:
        if file not in saved:
            _check_file(file)
    check_count(files, f"{ENDINGS} files in the folder {path}")
    return files


def _check_open(path: Path) -> None:
    """Raises InputError for a folder that may not be read, and for a name that no file can have."""
    with refusal(f"cannot read {path!s:.80}", "give the path of a file", OSError):
        is_closed = path.is_dir() and not os.access(path, os.R_OK | os.X_OK)
    if is_closed:
        raise InputError(f"cannot read {path}: permission denied; {READABLE}")


@refusing
def _check_file(path: Path) -> Iterator[str]:
    """Refuses a path that is not a file of texts."""
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
        yield from _saved_rows(file, split) if file.is_dir() else _READERS[ending_of(file)](file)


def _saved_rows(folder: Path, split: str) -> Iterator[Row]:
    from datasets import DatasetDict, load_from_disk

    silence_datasets()
    dataset = load_from_disk(str(folder))
    if isinstance(dataset, DatasetDict):
        if split not in dataset:
            raise InputError(f"{folder} holds {', '.join(dataset)}, and no {split!r}; give the folder of one of them")
        dataset = dataset[split]
    yield from dataset


def _of_datasets(loader: str) -> Callable[[Path], Iterator[Row]]:
    """Returns a reader of files that `datasets` reads."""

    def read(file: Path) -> Iterator[Row]:
        from datasets import load_dataset

        silence_datasets()
        pattern = glob.escape(str(file))  # `datasets` takes paths as patterns
        place = _datasets_cache()
        yield from load_dataset(loader, data_files=pattern, split="train", streaming=True, cache_dir=place)

    return read


def _opened(file: Path, newline: str | None = None) -> TextIO:
    """The text of a file, which may be packed."""
    from pyarrow import input_stream

    return TextIOWrapper(input_stream(str(file), compression="detect"), ENCODING, newline=newline)


def _paragraphs(file: Path) -> Iterator[Row]:
    with _opened(file) as lines:
        for is_blank, paragraph in groupby(lines, str.isspace):
            if not is_blank:
                yield {"text": "".join(paragraph).rstrip("\n")}


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


_READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _of_datasets("json"),
    ".json": _of_datasets("json"),
    ".txt": _paragraphs,
    ".parquet": _of_datasets("parquet"),
    ".csv": _cells,
}
ENDINGS = ", ".join(list(_READERS)[:-1]) + " or " + list(_READERS)[-1]


@lru_cache
def _datasets_cache() -> str | None:
    """The folder for the locks of `datasets`: None for its cache, or a temporary folder if that cache is read-only."""
    from datasets import config

    own = Path(config.HF_DATASETS_CACHE)
    with suppress(OSError):
        own.mkdir(parents=True, exist_ok=True)
        if os.access(own, os.W_OK):
            return None
    folder = tempfile.mkdtemp(prefix="sinkinterp-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def silence_datasets() -> None:
    """Turns the progress bars and the log of `datasets` off. Errors that it logs are also raised."""
    from datasets.utils.logging import CRITICAL, disable_progress_bar, set_verbosity

    disable_progress_bar()
    set_verbosity(CRITICAL)
