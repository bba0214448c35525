"""Texts of files, folders and datasets of the Hub, read through `datasets`."""

import atexit
import glob
import os
import shutil
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from ..errors import InputError

HUB_TIMEOUT = 10.0  # seconds in which the Hub must say whether it knows a dataset

_LOADERS = {".jsonl": "json", ".json": "json", ".txt": "text", ".parquet": "parquet", ".csv": "csv"}
_OPTIONS: dict[str, dict[str, object]] = {
    "text": {"sample_by": "paragraph"},
    "csv": {"keep_default_na": False},  # "NA" and an empty cell are texts
}
_ENDINGS = ", ".join(list(_LOADERS)[:-1]) + " or " + list(_LOADERS)[-1]
_OR_LOCAL = f"or give a {_ENDINGS} file, a folder of them, or no text at all for the embedded docstrings"


def texts_of(source: Path | str, column: str = "text", split: str = "train") -> Iterator[str]:
    """The texts of a file, of the files in a folder and its subfolders (in the order of their paths), or of a dataset.

    The texts of a .txt file are its paragraphs, with blank lines between them; .jsonl, .json, .parquet and .csv files
    hold texts in `column`. A string that is no path (see `is_path`) is one text itself if it has a space in it, and
    else names a dataset on the Hub, as NAME or NAME:CONFIG, whose `split` is streamed. Raises InputError, when the
    first text is read, where there is nothing to read.
    """
    if is_text(source):
        yield str(source)
        return
    if not is_path(source):
        for row in _dataset_rows(str(source), split):
            yield text_in(row, column, source)
        return
    for file in files_of(Path(source)):
        name = "text" if file.suffix.lower() == ".txt" else column
        for row in rows_of(file):
            yield text_in(row, name, file)


def check_readable(source: Path | str, column: str = "text") -> None:
    """Raises InputError where no first text can be read: call it before anything is written."""
    if next(texts_of(source, column), None) is None:
        raise InputError(f"{source} holds no text; give a file with texts")


def text_of_file(path: Path) -> str:
    """The whole text of a file. Raises InputError where it cannot be read as UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {_one_line(error)}; give a text file in UTF-8") from error


def is_text(source: Path | str) -> bool:
    """Whether `source` is a text itself: a string with a space in it that is no path (see `is_path`)."""
    return isinstance(source, str) and " " in source.strip() and not is_path(source)


def is_path(source: Path | str) -> bool:
    """Whether `source` means a path and no dataset: it is a Path, exists, or looks like a path or a text file."""
    path = Path(source)
    looks_so = path.is_absolute() or str(source).startswith((".", "~")) or path.suffix.lower() in _LOADERS
    return isinstance(source, Path) or looks_so or _exists(path)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a text is no file name: it may be too long, or hold a null character
        return False


def files_of(path: Path) -> list[Path]:
    """The text files in a folder and its subfolders, in the order of their paths; for a file, the file itself.

    Hidden files and folders are left out. Raises InputError where there is no text file.
    """
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in _LOADERS and file.is_file())
        files = [file for file in files if not any(part.startswith(".") for part in file.relative_to(path).parts)]
        if not files:
            raise InputError(f"the folder {path} holds no {_ENDINGS} file; give a folder with texts")
        return files
    if not _exists(path) or not path.is_file():
        raise InputError(f"there is no file {path}; check the path")
    if path.suffix.lower() not in _LOADERS:
        raise InputError(f"{path} is no {_ENDINGS} file; convert it to .jsonl with a text field")
    return [path]


def rows_of(file: Path) -> Iterator[Mapping[str, object]]:
    """The rows of a file, read one by one; the paragraphs of a .txt file are rows with one column, `text`."""
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    if not file.stat().st_size:
        raise InputError(f"{file} is empty; give a file with texts")
    _silence_datasets()
    loader = _LOADERS[file.suffix.lower()]
    options = _OPTIONS.get(loader, {})
    pattern = glob.escape(str(file))  # `datasets` takes paths as patterns
    try:
        place = _datasets_cache()
        yield from load_dataset(loader, data_files=pattern, split="train", streaming=True, cache_dir=place, **options)
    except (ValueError, OSError, DatasetsError) as error:
        raise InputError(f"cannot read {file}: {_one_line(error)}; is it a {file.suffix} file?") from error


def text_in(row: Mapping[str, object], column: str, source: Path | str) -> str:
    """The text in a column of a row. Raises InputError, which names the row's columns, where it holds no text."""
    text = row.get(column)
    if not isinstance(text, str):
        raise InputError(
            f"a row of {source} has no string in {column!r}, only {columns_in(row)}; name the column with --column"
        )
    return text


def columns_in(row: Mapping[str, object]) -> str:
    """The columns of a row with their types, for an error message."""
    return ", ".join(f"{name!r} ({type(value).__name__})" for name, value in row.items())


def _dataset_rows(name: str, split: str) -> Iterator[Mapping[str, object]]:
    """The rows of a dataset on the Hub, streamed."""
    from datasets import load_dataset
    from datasets.exceptions import DatasetNotFoundError

    _silence_datasets()
    repository, _, config = name.partition(":")
    _check_dataset(name, repository)
    try:
        yield from load_dataset(repository, config or None, split=split, streaming=True)
    except DatasetNotFoundError as error:
        raise InputError(
            f"the dataset {name!r} is closed to you ({_one_line(error)}); log in to the Hub, {_OR_LOCAL}"
        ) from error
    except Exception as error:
        raise InputError(
            f"cannot stream {split!r} of {name!r}: {_one_line(error)}; name another split or NAME:CONFIG, {_OR_LOCAL}"
        ) from error


def _check_dataset(name: str, repository: str) -> None:
    """Raises InputError where the Hub does not know a dataset, or does not answer."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    try:
        HfApi().dataset_info(repository, timeout=HUB_TIMEOUT)  # load_dataset waits half a minute for an absent Hub
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise InputError(
            f"{name!r} is neither a file nor a dataset on the Hub; check its spelling, {_OR_LOCAL}"
        ) from error
    except Exception as error:  # the HTTP client of huggingface_hub changes, and its errors with it
        raise InputError(
            f"the Hub cannot be asked for {name!r} ({_one_line(error)}); check the network, {_OR_LOCAL}"
        ) from error


@lru_cache
def _datasets_cache() -> str | None:
    """Where `datasets` writes its locks: None for its own cache, a temporary folder where nobody can write there."""
    from datasets import config

    own = Path(config.HF_DATASETS_CACHE)
    with suppress(OSError):
        own.mkdir(parents=True, exist_ok=True)
        if os.access(own, os.W_OK):
            return None
    folder = tempfile.mkdtemp(prefix="sinkinterp-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _silence_datasets() -> None:
    from datasets.utils.logging import CRITICAL, disable_progress_bar, set_verbosity

    disable_progress_bar()
    set_verbosity(CRITICAL)  # it also raises what it logs as an error


def _one_line(error: Exception) -> str:
    return textwrap.shorten(str(error), 300) or type(error).__name__
