"""Samples of public texts that a user may keep in the folder `shared/data` beside the repository."""

import json
from pathlib import Path

from sinkinterp.data.progress import Progress
from sinkinterp.data.tokens import Tokens
from sinkinterp.files import cache_folder
from sinkinterp.runs.case import Case

from .installed import texts_by_kind

FOLDER = Path(__file__).parents[2].parent / "shared" / "data"
FILES = {"C4": "c4_sample.jsonl", "Wikipedia": "wikipedia_sample.jsonl"}  # a text in the column `text` of each line
DOCSTRINGS, TRIED = "docstrings", 4  # TRIED: texts for each sequence, of which some are too short
BOOKS, CODE = "books", "Python code"
BOOK_FILE, PAGE = "gutenberg.jsonl", 20_000  # characters: every so many, a text of a book begins


def corpora() -> tuple[str, ...]:
    """The names of the samples that are there; without any, docstrings."""
    return tuple(name for name, file in FILES.items() if (FOLDER / file).is_file()) or (DOCSTRINGS,)


def absent() -> str:
    """What a note says of the samples that are not there."""
    return "; ".join(f"{name} is not read: shared/data/{FILES[name]} is not here" for name in FILES.keys() - corpora())


def kinds() -> tuple[str, ...]:
    """The first sample, books if they are there, and the code that is installed."""
    return (*corpora()[:1], *([BOOKS] if (FOLDER / BOOK_FILE).is_file() else []), CODE)


def tokens_of(case: Case, name: str, size: tuple[int, int], progress: Progress) -> Tokens:
    """The beginnings of the first texts of a sample that are long enough."""
    if name == DOCSTRINGS or case.subject.tokenizer is None:
        return case.tokens(size, progress, case.start).tokens
    n, length = size
    if name in (BOOKS, CODE):
        texts = _pages() if name == BOOKS else texts_by_kind(cache_folder(), progress("reading texts"))[CODE]
        return case.subject.tokens(texts[: TRIED * n], length, case.start, sequences=TRIED * n).tokens[:n]
    return case.subject.tokens(FOLDER / FILES[name], length, case.start, sequences=TRIED * n).tokens[:n]


def _pages() -> list[str]:
    """Parts of the books, from the second on, since a book begins with its title: of each book in turn."""
    books = [json.loads(line)["text"] for line in (FOLDER / BOOK_FILE).read_text("utf-8").splitlines()]
    most = max(map(len, books)) // PAGE
    return [book[i * PAGE : (i + 1) * PAGE] for i in range(1, most) for book in books if len(book) > (i + 1) * PAGE]
