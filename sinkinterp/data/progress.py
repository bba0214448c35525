"""How long work reports its progress, and how that is shown on standard error: as bars, as lines, or not at all."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from ..checks import accepting
from ..errors import InputError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

OnProgress = Callable[[int, int], None]  # takes how much is done, and of how much (0 where that is not known)
Part = TypeVar("Part")


@runtime_checkable
class Show(Protocol):
    """An `OnProgress` that also takes a note on the work, such as the loss."""

    def __call__(self, done: int, total: int, note: str = "", /) -> None: ...


Progress = Callable[[str], Show]  # starts the report on a piece of work, named by a text such as "training"

DELAY = 2.0  # seconds of work before a bar of the library is shown
SECONDS_BETWEEN_LINES = 5.0
BARS: ContextVar[bool] = ContextVar("sinkinterp_bars", default=True)
"""Whether the library may show bars. The commands turn it off, because they show their own."""


def no_progress(done: int, total: int, note: str = "") -> None:
    """Reports nothing."""


def silent(work: str) -> Show:
    """Reports nothing on any piece of work."""
    return no_progress


def told(parts: Sequence[Part], show: OnProgress) -> Iterator[Part]:
    """Every part of a piece of work, after it is told how many are done."""
    for done, part in enumerate(parts):
        show(done, len(parts))
        yield part


@contextmanager
def progress_of(progress: bool | OnProgress, work: str) -> Iterator[OnProgress]:
    """Yields what work reports to: the function that was given, or a bar. `progress=False` shows nothing.

    The bar appears after `DELAY` seconds, in terminals and notebooks only, and is removed at the end.
    """
    if not isinstance(progress, bool) and not callable(progress):
        raise InputError(
            f"progress is True, False or a function of how much is done, of how much; got {progress!r:.40}"
        )
    if not isinstance(progress, bool):
        yield accepting(progress, "progress", 0, 1)
    elif progress and BARS.get():
        with shown(is_brief=True) as start:
            yield start(work)
    else:
        yield no_progress


@contextmanager
def shown(console: "Console | None" = None, in_lines: bool = False, is_brief: bool = False) -> Iterator[Progress]:
    """Yields a function that starts the report on a piece of work.

    Every piece of work has a bar on a terminal or in a notebook with widgets. In other notebooks, and elsewhere if
    `in_lines`, it prints a line every few seconds. If `is_brief`, bars appear after `DELAY` seconds and are removed at
    the end. `console` writes to standard error, and is the one that prints while bars are shown.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bars

    console = console or Console(stderr=True)
    if not (console.is_terminal or (console.is_jupyter and find_spec("ipywidgets"))):
        yield _Lines if in_lines or console.is_jupyter else silent
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}"),
    )
    bars = Bars(*columns, console=console, transient=is_brief)
    try:
        yield partial(_Bar, bars, DELAY if is_brief else 0.0)
    finally:
        if bars.live.is_started:
            bars.stop()


class _Clock:
    """Estimates how long a piece of work still takes, from its first call on. Some may be done by then."""

    def __init__(self) -> None:
        self.first: tuple[int, float] | None = None

    def left(self, done: int, total: int) -> str:
        """The time left as text, which is empty where it is not known yet."""
        if self.first is None or done < self.first[0]:  # less is done than before: another part has begun
            self.first = done, time.monotonic()
        start, began = self.first
        if done <= start or not total:
            return ""
        return f"{timedelta(seconds=round((total - done) * (time.monotonic() - began) / (done - start)))} left"


class _Bar:
    """Shows one piece of work in a bar, which appears at the first call that comes after `delay` seconds."""

    def __init__(self, bars: "Bars", delay: float, work: str) -> None:
        self.bars, self.work, self.clock = bars, work, _Clock()
        self.visible_from = time.monotonic() + delay
        self.bar: TaskID | None = None

    def __call__(self, done: int, total: int, note: str = "") -> None:
        if self.bar is None:
            self.bar = self.bars.add_task(self.work, total=total or None, left="")
        if time.monotonic() >= self.visible_from:
            self.bars.start()
        text = f"{self.work}  {note}" if note else self.work
        left = self.clock.left(done, total)
        self.bars.update(self.bar, completed=done, total=total or None, description=text, left=left)


class _Lines:
    """Prints every few seconds how far one piece of work is, and its end."""

    def __init__(self, work: str) -> None:
        self.work, self.clock, self.last = work, _Clock(), time.monotonic()

    def __call__(self, done: int, total: int, note: str = "") -> None:
        left = self.clock.left(done, total)
        if time.monotonic() - self.last >= SECONDS_BETWEEN_LINES or done == total:
            self.last = time.monotonic()
            how_far = f"{self.work} {done:,}/{total:,}" if total else f"{self.work} {done:,}"
            print(*filter(None, (how_far, note, left if done < total else "")), sep="  ", file=sys.stderr, flush=True)
