"""How long work reports its progress."""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ..errors import InputError

OnProgress = Callable[[int, int], None]  # takes how much is done, and of how much (0 where that is not known)
Progress = Callable[[str], OnProgress]  # starts the report on a piece of work, named by a text such as "training"

DELAY = 2.0  # seconds before a bar is shown
BARS: ContextVar[bool] = ContextVar("sinkinterp_bars", default=True)
"""Whether work may show a bar of its own; the commands, which have their own bars, turn it off."""


def no_progress(done: int, total: int) -> None:
    """Reports nothing."""


def silent(work: str) -> OnProgress:
    """Reports nothing on any piece of work."""
    return no_progress


@contextmanager
def progress_of(progress: bool | OnProgress, work: str) -> Iterator[OnProgress]:
    """What to report to: a function that was given, or a tqdm bar on standard error where someone sees it.

    The bar comes after `DELAY` seconds, in terminals and notebooks only. `progress=False` shows none.
    """
    if not isinstance(progress, bool) and not callable(progress):
        raise InputError(
            f"progress is True, False or a function of how much is done, of how much; got {progress!r:.40}"
        )
    if not isinstance(progress, bool):
        yield progress
    elif progress and BARS.get() and (in_notebook() or sys.stderr.isatty()):
        with _bar(work) as on_progress:
            yield on_progress
    else:
        yield no_progress


@contextmanager
def _bar(work: str) -> Iterator[OnProgress]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tqdm warns where a notebook has no widgets, and draws text then
        from tqdm.auto import tqdm

        bar = tqdm(desc=work, delay=DELAY, leave=False, file=sys.stderr)

    def update(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)

    try:
        yield update
    finally:
        bar.close()


def in_notebook() -> bool:
    """Whether this runs in a Jupyter kernel."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and "IPKernelApp" in shell.config
