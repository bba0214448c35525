"""Texts that every installation holds: English docstrings and Python code."""

import ast
import hashlib
import importlib.metadata
import importlib.util
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..seals import Damaged, read_record, write_record
from .progress import OnProgress, no_progress

DEPENDENCIES = ("torch", "transformers", "numpy", "datasets", "tokenizers", "einops", "rich", "typer")
MIN_CHARACTERS = 200  # shorter texts are left out
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def embedded_texts(cache: Path, on_file: OnProgress = no_progress) -> list[str]:
    """English docstrings of the standard library and of our dependencies, each once, in a mixed order.

    They are gathered once and kept in `cache` under a hash of the versions that they were read from. Where the file
    there is damaged, that is said on standard error, and they are gathered again.
    """
    versions = ["python " + sysconfig.get_python_version()]
    versions += [f"{name} {importlib.metadata.version(name)}" for name in DEPENDENCIES]
    file = cache / f"embedded-{hashlib.sha256(' '.join(versions).encode()).hexdigest()[:12]}.json"
    if file.exists():
        try:
            return read_record(file)
        except Damaged as damage:
            damage.warn("the docstrings are gathered again")
    texts = mixed(_docstrings(_documented_files(), on_file))
    write_record(file, texts)
    return texts


def library_texts(on_file: OnProgress = no_progress) -> list[str]:
    """The Python files of the standard library, each once, in a mixed order; short or non-UTF-8 ones are left out."""
    texts, files = [], _library_files()
    for i, file in enumerate(files, 1):
        on_file(i, len(files))
        try:
            texts.append(file.read_text("utf-8"))
        except UnicodeDecodeError:
            continue
    return mixed(text for text in texts if len(text) > MIN_CHARACTERS)


def _docstrings(files: list[Path], on_file: OnProgress) -> Iterator[str]:
    """The docstrings of Python files that are long enough and plain ASCII, each on one line."""
    for i, file in enumerate(files, 1):
        on_file(i, len(files))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError, RecursionError):
            continue
        for node in _statements(tree):
            if isinstance(node, _DOCUMENTED):
                text = re.sub(r"\s+", " ", ast.get_docstring(node) or "").strip()
                if len(text) >= MIN_CHARACTERS and text.isascii():
                    yield text


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """The module, and every statement in it. ast.walk visits expressions too, which takes longer."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting += getattr(node, part, ())


def mixed(texts: Iterable[str]) -> list[str]:
    """Each text once, in the order of their hashes."""
    return sorted(set(texts), key=lambda text: hashlib.sha256(text.encode()).hexdigest())


def _documented_files() -> list[Path]:
    """The Python files of the standard library and of our dependencies, without their tests."""
    files = _library_files()
    for name in DEPENDENCIES:
        spec = importlib.util.find_spec(name)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            files += _python_files(Path(folder), {"test", "tests", "testing"})
    return files


def _library_files() -> list[Path]:
    return _python_files(Path(sysconfig.get_path("stdlib")), {"site-packages", "test", "tests"})


def _python_files(folder: Path, left_out: set[str]) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if not left_out & set(path.parts))
