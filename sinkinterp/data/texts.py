"""Texts: files, folders and named datasets through `datasets`, and the embedded English text of every installation."""

import ast
import glob
import hashlib
import importlib.metadata
import importlib.util
import json
import re
import sysconfig
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from ..errors import InputError
from ..files import write_json

DEPENDENCIES = ("torch", "transformers", "numpy", "datasets", "tokenizers", "einops", "rich", "typer")
SHORTEST = 200  # characters of a docstring worth keeping
PATIENCE = 10.0  # seconds that the Hub has to say whether it knows a dataset

_LOADERS = {".jsonl": "json", ".json": "json", ".txt": "text", ".parquet": "parquet", ".csv": "csv"}
_OPTIONS: dict[str, dict[str, object]] = {
    "text": {"sample_by": "paragraph"},
    "csv": {"keep_default_na": False},  # NA is a text, and so is none
}
_ENDINGS = ", ".join(list(_LOADERS)[:-1]) + " or " + list(_LOADERS)[-1]
_INSTEAD = f"or give a {_ENDINGS} file, a folder of them, or no text at all for the embedded docstrings"


def texts_of(source: Path | str, column: str = "text", split: str = "train") -> Iterator[str]:
    """The texts of a file, of the files in a folder (by their paths, subfolders too), or of a dataset on the Hub.

    A .txt file's texts are its paragraphs (blank lines between); .jsonl, .json, .parquet and .csv files hold them in
    `column`. A string that is neither a path that exists nor looks like one names a dataset, `name` or `name:config`,
    of which `split` is streamed. Raises InputError, once the first text is asked for, where there is nothing to read.
    """
    if not is_local(source):
        for row in _dataset_rows(str(source), split):
            yield text_in(row, column, source)
        return
    for file in files_of(Path(source)):
        name = "text" if file.suffix.lower() == ".txt" else column
        for row in rows_of(file):
            yield text_in(row, name, file)


def is_local(source: Path | str) -> bool:
    """Whether `source` is meant as a path: it is a Path, or it exists, or it is written like a path or a text file."""
    path = Path(source)
    written_so = path.is_absolute() or str(source).startswith((".", "~")) or path.suffix.lower() in _LOADERS
    return isinstance(source, Path) or written_so or path.exists()


def files_of(path: Path) -> list[Path]:
    """The text files in a folder and its subfolders in the order of their paths; a file itself where it is no folder.

    Hidden files and folders are left out. Raises InputError where there is none.
    """
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in _LOADERS and file.is_file())
        files = [file for file in files if not any(part.startswith(".") for part in file.relative_to(path).parts)]
        if not files:
            raise InputError(f"the folder {path} holds no {_ENDINGS} file; give a folder with texts")
        return files
    if not path.is_file():
        raise InputError(f"there is no file {path}; check the path")
    if path.suffix.lower() not in _LOADERS:
        raise InputError(f"{path} is no {_ENDINGS} file; convert it to .jsonl with a text field")
    return [path]


def rows_of(file: Path) -> Iterator[Mapping[str, object]]:
    """The rows of a file, read as they are asked for; a .txt file's paragraphs are rows with one column, `text`."""
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    if not file.stat().st_size:
        raise InputError(f"{file} is empty; give a file with texts")
    _quiet()
    loader = _LOADERS[file.suffix.lower()]
    options = _OPTIONS.get(loader, {})
    place = glob.escape(str(file))  # `datasets` takes paths as patterns
    try:
        yield from load_dataset(loader, data_files=place, split="train", streaming=True, **options)
    except (ValueError, OSError, DatasetsError) as error:
        raise InputError(f"cannot read {file}: {_said(error)}; is it a {file.suffix} file?") from error


def text_in(row: Mapping[str, object], column: str, source: Path | str) -> str:
    """The text in a column of a row. Raises InputError, naming the columns there are, where it holds no string."""
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
    from datasets import load_dataset
    from datasets.exceptions import DatasetNotFoundError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    _quiet()
    place, _, config = name.partition(":")
    try:
        HfApi().dataset_info(place, timeout=PATIENCE)  # load_dataset alone asks an unreachable Hub for half a minute
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise InputError(
            f"{name!r} is neither a file nor a dataset on the Hub; check its spelling, {_INSTEAD}"
        ) from error
    except Exception as error:  # whatever the HTTP client of the day raises
        raise InputError(
            f"the Hub cannot be asked for {name!r} ({_said(error)}); check the network, {_INSTEAD}"
        ) from error
    try:
        yield from load_dataset(place, config or None, split=split, streaming=True)
    except DatasetNotFoundError as error:
        raise InputError(
            f"the dataset {name!r} is closed to you ({_said(error)}); log in to the Hub, {_INSTEAD}"
        ) from error
    except Exception as error:
        raise InputError(
            f"cannot stream {split!r} of {name!r}: {_said(error)}; name another split or NAME:CONFIG, {_INSTEAD}"
        ) from error


def _quiet() -> None:
    from datasets.utils.logging import CRITICAL, disable_progress_bar, set_verbosity

    disable_progress_bar()
    set_verbosity(CRITICAL)  # what it logs as an error is raised as well


def _said(error: Exception) -> str:
    return textwrap.shorten(str(error), 300) or type(error).__name__


def embedded_texts(cache: Path, on_file: Callable[[int, int], None] = lambda done, of: None) -> list[str]:
    """English docstrings of the standard library and of our dependencies, in an order that mixes their sources.

    Gathered once and kept in `cache` under the hash of the versions it was made from; each text stands once.
    """
    versions = ["python " + sysconfig.get_python_version()]
    versions += [f"{name} {importlib.metadata.version(name)}" for name in DEPENDENCIES]
    kept = cache / f"docstrings-{hashlib.sha256(' '.join(versions).encode()).hexdigest()[:12]}.json"
    if not kept.is_file():
        texts = _mixed(_docstrings(on_file))
        write_json(kept, texts)
    return json.loads(kept.read_text())


def _docstrings(on_file: Callable[[int, int], None]) -> Iterator[str]:
    files = list(_sources())
    for i, file in enumerate(files):
        on_file(i + 1, len(files))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError, RecursionError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = re.sub(r"\s+", " ", ast.get_docstring(node) or "").strip()
                if len(text) >= SHORTEST and text.isascii():
                    yield text


def library_texts(on_file: Callable[[int, int], None] = lambda done, of: None) -> list[str]:
    """The Python files of the standard library that are UTF-8 and longer than a docstring worth keeping, mixed."""
    found, files = [], _library()
    for i, file in enumerate(files, 1):
        on_file(i, len(files))
        try:
            found.append(file.read_text("utf-8"))
        except UnicodeDecodeError:
            continue
    return _mixed(text for text in found if len(text) > SHORTEST)


def _mixed(texts: Iterable[str]) -> list[str]:
    """Each text once, in the order of their hashes."""
    return sorted(set(texts), key=lambda text: hashlib.sha256(text.encode()).hexdigest())


def _library() -> list[Path]:
    library = Path(sysconfig.get_path("stdlib"))
    return sorted(p for p in library.rglob("*.py") if not {"site-packages", "test", "tests"} & set(p.parts))


def _sources() -> Iterable[Path]:
    yield from _library()
    for name in DEPENDENCIES:
        spec = importlib.util.find_spec(name)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            yield from sorted(p for p in Path(folder).rglob("*.py") if not {"test", "tests", "testing"} & set(p.parts))
