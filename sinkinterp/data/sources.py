"""Where the texts of a corpus come from, as values that a recipe can hold."""

import hashlib
import importlib.metadata
import platform
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..spec import Spec
from .docstrings import DEPENDENCIES, embedded_texts, library_texts
from .progress import OnProgress, no_progress
from .texts import files_of, texts_of


@dataclass(frozen=True)
class Source(Spec):
    """Documents in an order that never changes."""

    def texts(self, cache: Path, on_file: OnProgress = no_progress) -> Iterable[str]:
        """The documents. Raises InputError where they cannot be read."""
        raise NotImplementedError

    def fingerprint(self) -> str:
        """A hash of what the documents are read from; empty where that is not on this machine."""
        raise NotImplementedError

    def changed_since(self, fingerprint: str) -> bool:
        """Whether the documents differ from those that had `fingerprint`, so that what was made of them is outdated."""
        raise NotImplementedError


@dataclass(frozen=True)
class Embedded(Source):
    """English docstrings of the standard library and our dependencies, in the versions installed when packed."""

    def texts(self, cache: Path, on_file: OnProgress = no_progress) -> Iterable[str]:
        return embedded_texts(cache, on_file)

    def fingerprint(self) -> str:
        versions = [sysconfig.get_python_version(), *map(importlib.metadata.version, DEPENDENCIES)]
        return hashlib.sha256(" ".join(versions).encode()).hexdigest()

    def changed_since(self, fingerprint: str) -> bool:
        return False  # docstrings of other versions that were packed are still a corpus with its own hash


@dataclass(frozen=True)
class PythonCode(Source):
    """The files of Python's standard library, in the version installed when packed."""

    def texts(self, cache: Path, on_file: OnProgress = no_progress) -> Iterable[str]:
        return library_texts(on_file)

    def fingerprint(self) -> str:
        return platform.python_version()

    def changed_since(self, fingerprint: str) -> bool:
        return False  # code of another version that was packed is still a corpus with its own hash


@dataclass(frozen=True)
class Texts(Source):
    """The texts of a file, a folder or a dataset on the Hub, as `texts.texts_of` reads them.

    A dataset on the Hub has no fingerprint, so a change of it goes unnoticed: use one that does not change.
    """

    source: str
    column: str = "text"
    split: str = "train"

    def texts(self, cache: Path, on_file: OnProgress = no_progress) -> Iterable[str]:
        return texts_of(self.source, self.column, self.split)

    def fingerprint(self) -> str:
        path, digest = Path(self.source), hashlib.sha256()
        if not path.exists():
            return ""
        for part in files_of(path):
            with part.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    def changed_since(self, fingerprint: str) -> bool:
        return self.fingerprint() not in ("", fingerprint)
