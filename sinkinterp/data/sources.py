"""Where the texts of a corpus come from, as values that a recipe can hold."""

import hashlib
import importlib.metadata
import platform
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ..spec import Spec
from .texts import DEPENDENCIES, embedded_texts, files_of, library_texts, texts_of

OnProgress = Callable[[int, int], None]  # how many are done, of how many; of 0 where that is not known


@dataclass(frozen=True)
class Source(Spec):
    """Documents in an order that never changes."""

    def texts(self, cache: Path, on_progress: OnProgress = lambda done, of: None) -> Iterable[str]:
        """The documents. Raises InputError where they cannot be read."""
        raise NotImplementedError

    def fingerprint(self) -> str:
        """The hash of what the documents are read from; empty where that is not at hand."""
        raise NotImplementedError

    def changed_since(self, fingerprint: str) -> bool:
        """Whether other documents stand here now than when `fingerprint` was taken, so that what is kept is stale."""
        raise NotImplementedError


@dataclass(frozen=True)
class Embedded(Source):
    """English docstrings of the standard library and our dependencies, as the installation that packs them has them."""

    def texts(self, cache: Path, on_progress: OnProgress = lambda done, of: None) -> Iterable[str]:
        return embedded_texts(cache, on_progress)

    def fingerprint(self) -> str:
        versions = [sysconfig.get_python_version(), *map(importlib.metadata.version, DEPENDENCIES)]
        return hashlib.sha256(" ".join(versions).encode()).hexdigest()

    def changed_since(self, fingerprint: str) -> bool:
        return False  # what was packed under other versions is still a corpus of docstrings, fixed and hashed


@dataclass(frozen=True)
class PythonCode(Source):
    """The files of Python's standard library, as the installation that packs them has them."""

    def texts(self, cache: Path, on_progress: OnProgress = lambda done, of: None) -> Iterable[str]:
        return library_texts(on_progress)

    def fingerprint(self) -> str:
        return platform.python_version()

    def changed_since(self, fingerprint: str) -> bool:
        return False  # what was packed under another version is still a corpus of code, fixed and hashed


@dataclass(frozen=True)
class Texts(Source):
    """The texts of a file, a folder or a dataset on the Hub, as `corpora.texts_of` reads them.

    Hub datasets have no fingerprint: name one that does not change.
    """

    source: str
    column: str = "text"
    split: str = "train"

    def texts(self, cache: Path, on_progress: OnProgress = lambda done, of: None) -> Iterable[str]:
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
