"""The book that ships, read once in a process."""

from functools import cache
from pathlib import Path

from sinkinterp._experiments.book.chapter import chapters_in

BOOK = Path(__file__).parents[2] / "figures" / "book"


@cache
def by_stem():
    return {chapter.stem: chapter for chapter in chapters_in(BOOK)}


def chapters():
    return [*by_stem().values()]
