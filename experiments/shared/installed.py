"""Texts of several kinds that every installation holds, so that kinds of text can be compared without a download."""

import importlib.metadata
import importlib.util
import random
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

from sinkinterp.data.progress import OnProgress, no_progress
from sinkinterp.data.sources import MIN_CHARACTERS, PythonCode, embedded_texts, mixed

SUMS = 200  # texts of arithmetic
SUMS_PER_TEXT = 40


def texts_by_kind(folder: Path, on_file: OnProgress = no_progress) -> dict[str, list[str]]:
    """Texts by kind: English docstrings, Python code, C++ headers, package descriptions and arithmetic.

    Which texts there are depends on the packages installed and their versions. `folder` is where the docstrings are
    kept; `on_file` is told of the files that they are read from.
    """
    return {"docstrings": embedded_texts(folder, on_file), **_other_kinds()}


@cache
def _other_kinds() -> dict[str, list[str]]:
    """The texts of the kinds that are not kept in a cache, which are read once for all models."""
    return {kind: mixed(texts()) for kind, texts in _OTHER_KINDS.items()}


def _headers() -> Iterator[str]:
    """The C++ headers of torch from their first declaration on, since many begin with the same notice."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.submodule_search_locations is not None
    for file in sorted((Path(spec.submodule_search_locations[0]) / "include" / "ATen").rglob("*.h")):
        text = file.read_text("utf-8", errors="replace")
        start = re.search(r"^(namespace|struct|class|template|inline|static)\b", text, re.MULTILINE)
        if start and len(text) - start.start() >= MIN_CHARACTERS:
            yield text[start.start() :]


def _descriptions() -> Iterator[str]:
    """The longer paragraphs of what packages say about themselves, mostly in Markdown."""
    for package in importlib.metadata.distributions():
        description = package.metadata and package.metadata["Description"]
        for paragraph in re.split(r"\n\s*\n", str(description or "")):
            if len(paragraph) >= 2 * MIN_CHARACTERS:
                yield paragraph.strip()


def _arithmetic() -> Iterator[str]:
    """Sums and products of small numbers, a line each."""
    drawn = random.Random(0)
    for _ in range(SUMS):
        pairs = [(drawn.randrange(1000), drawn.randrange(1000)) for _ in range(SUMS_PER_TEXT)]
        yield "\n".join(f"{a} + {b} = {a + b}; {a} * {b} = {a * b}" for a, b in pairs)


_OTHER_KINDS: dict[str, Callable[[], Iterable[str]]] = {
    "Python code": lambda: PythonCode().texts(Path()),  # it keeps nothing in a folder
    "C++ headers": _headers,
    "package descriptions": _descriptions,
    "arithmetic": _arithmetic,
}
