"""Texts: files through `datasets`, and the embedded English text, which every installation carries."""

import ast
import hashlib
import importlib.metadata
import importlib.util
import json
import re
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from ..errors import InputError

DEPENDENCIES = ("torch", "transformers", "numpy", "datasets", "tokenizers", "einops", "rich", "typer")
SHORTEST = 200  # characters of a docstring worth keeping

_LOADERS = {".jsonl": "json", ".json": "json", ".txt": "text"}


def texts_of(path: Path) -> Iterator[str]:
    """The texts of a file: a .jsonl file's `text` fields, or a .txt file's paragraphs (blank lines between)."""
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError
    from datasets.utils.logging import disable_progress_bar
    from datasets.utils.logging import set_verbosity_error as disable_logging

    loader = _LOADERS.get(path.suffix)
    if loader is None:
        raise InputError(f"{path} is no {' or '.join(_LOADERS)} file; convert it to .jsonl with a text field")
    if not path.is_file():
        raise InputError(f"there is no file {path}; check the path")
    if not path.stat().st_size:
        raise InputError(f"{path} is empty; give a file with texts")
    disable_progress_bar()
    disable_logging()
    options = {"sample_by": "paragraph"} if loader == "text" else {}
    try:
        for row in load_dataset(loader, data_files=str(path), split="train", streaming=True, **options):
            if not isinstance(row.get("text"), str):
                raise InputError(
                    f"a row of {path} has no string in 'text', only {_fields(row)}; mend or rename the field"
                )
            yield row["text"]
    except (ValueError, OSError, DatasetsError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"cannot read {path}: {str(error).splitlines()[0]}; is it a {path.suffix} file?") from error


def _fields(row: Mapping[str, object]) -> str:
    return ", ".join(f"{name!r} ({type(value).__name__})" for name, value in row.items())


def embedded_texts(cache: Path, on_file: Callable[[int, int], None] = lambda done, of: None) -> list[str]:
    """English docstrings of the standard library and of our dependencies, in an order that mixes their sources.

    Gathered once and kept in `cache` under the hash of the versions it was made from; each text stands once.
    """
    versions = ["python " + sysconfig.get_python_version()]
    versions += [f"{name} {importlib.metadata.version(name)}" for name in DEPENDENCIES]
    kept = cache / f"docstrings-{hashlib.sha256(' '.join(versions).encode()).hexdigest()[:12]}.json"
    if not kept.is_file():
        texts = sorted(set(_docstrings(on_file)), key=lambda text: hashlib.sha256(text.encode()).hexdigest())
        cache.mkdir(parents=True, exist_ok=True)
        draft = kept.with_suffix(".draft")
        draft.write_text(json.dumps(texts))
        draft.replace(kept)
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


def _sources() -> Iterable[Path]:
    library = Path(sysconfig.get_path("stdlib"))
    yield from sorted(p for p in library.rglob("*.py") if not {"site-packages", "test", "tests"} & set(p.parts))
    for name in DEPENDENCIES:
        spec = importlib.util.find_spec(name)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            yield from sorted(p for p in Path(folder).rglob("*.py") if not {"test", "tests", "testing"} & set(p.parts))
