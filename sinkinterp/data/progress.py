"""How long work reports its progress."""

from collections.abc import Callable

OnProgress = Callable[[int, int], None]  # takes how much is done, and of how much (0 where that is not known)
Progress = Callable[[str], OnProgress]  # starts the report on a piece of work, named by a text such as "training"


def no_progress(done: int, total: int) -> None:
    """Reports nothing."""


def silent(work: str) -> OnProgress:
    """Reports nothing on any piece of work."""
    return no_progress
