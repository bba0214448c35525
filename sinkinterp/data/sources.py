"""Sources of the texts of a corpus, as values that a recipe can hold. Some are in every installation."""

import ast
import hashlib
import importlib.metadata
import importlib.util
import platform
import random
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from ..checks import refusal
from ..files import Damaged, read_record, write_record
from ..spec import Limits, Spec, added_later
from .progress import OnProgress, no_progress

DEPENDENCIES = ("torch", "transformers", "numpy", "datasets", "tokenizers", "einops", "rich", "typer")
MIN_CHARACTERS = 200  # shorter texts are left out
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Source(Spec):
    """Documents in an order that never changes."""

    @property
    def outside(self) -> str:
        """The file, folder or dataset that is read; empty for what is part of the installation."""
        return ""

    def check(self) -> None:
        """Raises InputError where the user has to name the documents first."""

    def texts(self, cache: Path, on_file: OnProgress = no_progress) -> Iterable[str]:
        """The documents. Raises InputError where they cannot be read."""
        self.check()
        return ()

    def absolute(self) -> "Source":
        """The same source with absolute paths, so that it can be read from any folder."""
        return self

    def fingerprint(self) -> str:
        """A hash of the files or versions that are read; empty if they are not on this machine."""
        return ""

    def changed_since(self, fingerprint: str) -> bool:
        """Returns true if the documents differ from those that had `fingerprint`, and were given as files.

        Docstrings and code of other versions that were packed are still a corpus with its own hash.
        """
        return bool(self.outside) and self.fingerprint() not in ("", fingerprint)


class Embedded(Source):
    """English docstrings of the standard library and our dependencies, in the versions installed when packed."""

    def texts(self, cache: Path, on_file: OnProgress = no_progress) -> Iterable[str]:
        return embedded_texts(cache, on_file)

    def fingerprint(self) -> str:
        versions = [sysconfig.get_python_version(), *map(importlib.metadata.version, DEPENDENCIES)]
        return hashlib.sha256(" ".join(versions).encode()).hexdigest()


class PythonCode(Source):
    """The files of Python's standard library and of packages, in the versions installed when packed."""

    packages: tuple[str, ...] = added_later(())

    def check(self) -> None:
        for name in self.packages:
            with refusal(f"no code of the package {name!r} is here", "install it, or leave it out of packages"):
                importlib.metadata.version(name)
                if not _folders_of(name):
                    raise ImportError("it has no folder of its own")

    def texts(self, cache: Path, on_file: OnProgress = no_progress) -> Iterable[str]:
        """The texts of the files, each once, in a mixed order, without short files and those that are not UTF-8."""
        self.check()
        files, texts = _library_files() + _package_files(self.packages), set[str]()
        for i, file in enumerate(files, 1):
            on_file(i, len(files))
            with suppress(UnicodeDecodeError):
                texts.add(file.read_text("utf-8"))
        return mixed(text for text in texts if len(text) > MIN_CHARACTERS)

    def fingerprint(self) -> str:
        return " ".join((platform.python_version(), *map(importlib.metadata.version, self.packages)))


class Repeating(Source):
    """The documents of another source, edited so that they often repeat earlier text.

    After spans of 80 to 200 characters, with probability `share`, follow 40 to 110 characters that began 60 to 200
    characters before. So a head that copies earlier text is often useful, but not always.
    """

    limits: ClassVar[Limits] = {"share": (0, 1)}

    source: Source = PythonCode()
    share: float = 0.7

    @property
    def outside(self) -> str:
        return self.source.outside

    def check(self) -> None:
        self.source.check()

    def texts(self, cache: Path, on_file: OnProgress = no_progress) -> Iterable[str]:
        return (self._repeating(text) for text in self.source.texts(cache, on_file))

    def _repeating(self, text: str) -> str:
        drawn, parts, done = random.Random(text), "", 0
        while done < len(text):
            span = drawn.randint(80, 200)
            parts += text[done : done + span]
            done += span
            if drawn.random() < self.share:
                start = max(0, len(parts) - drawn.randint(60, 200))
                parts += parts[start : start + drawn.randint(40, 110)]
        return parts

    def absolute(self) -> "Repeating":
        return replace(self, source=self.source.absolute())

    def fingerprint(self) -> str:
        return self.source.fingerprint()


def embedded_texts(cache: Path, on_file: OnProgress = no_progress) -> list[str]:
    """English docstrings of the standard library and of our dependencies, each once, in a mixed order.

    They are gathered once and kept in `cache` under a hash of the versions that they were read from. If that file is
    damaged, a warning says so on standard error, and they are gathered again.
    """
    file = cache / f"embedded-{Embedded().fingerprint()[:12]}.json"
    with refusal(f"cannot read {file}", of=PermissionError):
        if file.exists():
            try:
                return read_record(file, {"docstrings": file.stem})
            except Damaged as damage:
                damage.warn("the docstrings are gathered again")
    texts = mixed(_docstrings(_documented_files(), on_file))
    with refusal(f"cannot write the docstrings to {cache}", "set SINKINTERP_CACHE to a folder of yours", OSError):
        write_record(file, texts, {"docstrings": file.stem})
    return texts


def _docstrings(files: list[Path], on_file: OnProgress) -> Iterator[str]:
    """The docstrings of Python files that are long enough and plain ASCII, each on one line."""
    for done, file in enumerate(files, 1):
        on_file(done, len(files))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError, RecursionError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, _DOCUMENTED):
                text = re.sub(r"\s+", " ", ast.get_docstring(node) or "").strip()
                if len(text) >= MIN_CHARACTERS and text.isascii():
                    yield text


def mixed(texts: Iterable[str]) -> list[str]:
    """Each text once, in the order of their hashes."""
    return sorted(set(texts), key=lambda text: hashlib.sha256(text.encode()).hexdigest())


def _documented_files() -> list[Path]:
    """The Python files of the standard library and of our dependencies, without their tests."""
    return _library_files() + _package_files(DEPENDENCIES)


def _package_files(names: Iterable[str]) -> list[Path]:
    tests = {"test", "tests", "testing"}
    return [file for name in names for folder in _folders_of(name) for file in _python_files(folder, tests)]


def _folders_of(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    return [] if spec is None else [*map(Path, spec.submodule_search_locations or ())]


def _library_files() -> list[Path]:
    return _python_files(Path(sysconfig.get_path("stdlib")), {"site-packages", "test", "tests"})


def _python_files(folder: Path, left_out: set[str]) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if not left_out & set(path.parts))
