"""Longer texts: samples that a user may keep in the folder `shared/data` beside the repository, and joined ones."""

import json
from collections.abc import Iterator
from pathlib import Path

from sinkinterp.checks import InputError
from sinkinterp.data.choices import Bos
from sinkinterp.data.progress import Progress
from sinkinterp.data.tokens import Tokens

from .cases import READING, Case

FOLDER = Path(__file__).parents[2].parent / "shared" / "data"
FILES = {"C4": "c4_sample.jsonl", "Wikipedia": "wikipedia_sample.jsonl"}  # a text in the column `text` of each line
BOOKS, BOOKS_FILE = "books", "gutenberg.jsonl"
PASSAGES, CHARACTERS = 4, 8000  # of each book, and their length
DOCSTRINGS, TRIED = "docstrings", 4  # TRIED: texts for each sequence, of which some are too short


def corpora() -> tuple[str, ...]:
    """The names of the samples that are there; without any, docstrings."""
    return tuple(name for name, file in FILES.items() if (FOLDER / file).is_file()) or (DOCSTRINGS,)


def absent() -> str:
    """What a note says of the samples that are not there."""
    return "; ".join(f"{name} is not read: shared/data/{FILES[name]} is not here" for name in FILES.keys() - corpora())


def tokens_of(case: Case, name: str, size: tuple[int, int], progress: Progress) -> Tokens:
    """The beginnings of the first texts of a sample that are long enough."""
    if name == DOCSTRINGS or case.subject.tokenizer is None:
        return case.tokens(size, progress, case.start).tokens
    n, length = size
    return case.subject.tokens(FOLDER / FILES[name], length, case.start, sequences=TRIED * n).tokens[:n]


def passages() -> list[str]:
    """Passages from the inside of each book, each from the beginning of a paragraph; none without the sample."""
    file = FOLDER / BOOKS_FILE
    lines = file.read_text(encoding="utf-8").split("\n") if file.is_file() else []
    return [*_passages([json.loads(line)["text"] for line in lines if line])]


def _passages(books: list[str]) -> Iterator[str]:
    """The first passage of each book, then the second ones, and so on."""
    for part in range(1, PASSAGES + 1):
        for book in books:
            start = book.find("\n\n", len(book) * part // (PASSAGES + 1)) + 2
            yield book[start : start + CHARACTERS].lstrip()


def long_texts(case: Case, size: tuple[int, int], joined: int, bos: Bos, progress: Progress) -> tuple[Tokens, str]:
    """Returns texts of a size (number, length) and their kind: whole texts, or joined beginnings of `joined` tokens.

    Raises InputError for a model without a tokenizer, and where the texts are too few.
    """
    documents, length = size
    try:
        token_set = case.natural_tokens(size, bos, progress(READING))
        kind = "a text each"
    except InputError:
        part = min(length, joined)
        token_set = case.natural_tokens((documents * -(-length // part), part), bos, progress(READING))
        kind = f"each joined from the first {part} tokens of several texts"
    if token_set is None:
        raise InputError(f"{case.subject.name} has no tokenizer, so it reads no long text; give a model with one")
    return token_set.tokens.flatten()[: documents * length].view(documents, length), f"{token_set.source}, {kind}"
