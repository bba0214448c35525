"""How long work reports its progress, and how that is shown on standard error: as bars, as lines, or not at all."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from contextvars import ContextVar
from functools import partial
from importlib.util import find_spec
from typing import Any, Protocol, TypeVar, runtime_checkable

from tqdm.std import tqdm

from ..checks import accepting

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


def counting(parts: Sequence[Part], show: OnProgress) -> Iterator[Part]:
    """Every part of a piece of work. `show` is told how many are done, before each and at the end."""
    for done, part in enumerate(parts):
        show(done, len(parts))
        yield part
    show(len(parts), len(parts))


def reported(parts: Sequence[Part], progress: Progress, work: str) -> Iterator[Part]:
    """Every part of a piece of work, as `counting`. Raises InputError unless `progress` starts a report on it."""
    return counting(parts, accepting(progress, "progress", "")(work))


@contextmanager
def progress_of(progress: bool | OnProgress, work: str) -> Iterator[OnProgress]:
    """Yields what work reports to: the function that was given, or a bar. `progress=False` shows nothing.

    The bar appears after `DELAY` seconds, in terminals and notebooks only, and is removed at the end.
    """
    if not isinstance(progress, bool):
        yield accepting(progress, "progress, where it is neither True nor False,", 0, 1)
    elif progress and BARS.get():
        with progress_bars(is_brief=True) as start:
            yield start(work)
    else:
        yield no_progress


@contextmanager
def progress_bars(in_lines: bool = False, is_brief: bool = False) -> Iterator[Progress]:
    """Yields a function that starts the report on a piece of work, on standard error.

    Every piece of work has a bar of tqdm on a terminal or in a notebook with widgets. In other notebooks, and elsewhere
    if `in_lines`, it prints a line every few seconds. If `is_brief`, bars appear after `DELAY` seconds and are removed
    at the end.
    """
    from tqdm.auto import tqdm as bar

    in_notebook, is_terminal = "ipykernel.zmqshell" in sys.modules, sys.stderr is not None and sys.stderr.isatty()
    with ExitStack() as stack:
        if is_terminal or (in_notebook and find_spec("ipywidgets")):
            yield partial(_Work, partial(bar, delay=DELAY, leave=False) if is_brief else bar, stack)
        else:
            yield partial(_Work, partial(_Lines, **_IN_LINES), stack) if in_lines or in_notebook else silent


_IN_LINES: dict[str, Any] = {
    "mininterval": SECONDS_BETWEEN_LINES,
    "delay": SECONDS_BETWEEN_LINES,
    "position": 0,  # several pieces of work print below each other
    "bar_format": "{desc} {n_fmt}/{total_fmt}{postfix}, {remaining} left",
}


class _Lines(tqdm):
    """A bar that is a line of text, and a new one each time."""

    @staticmethod
    def status_printer(file: Any) -> Callable[[str], None]:
        return lambda text: print(text, file=file, flush=True)

    def __str__(self) -> str:
        elapsed = self.format_interval(self.format_dict["elapsed"])
        text = super().__str__().replace("? left", f"{elapsed} so far")
        return text.removesuffix("" if self.total else ", 00:00 left")

    def close(self) -> None:
        self.sp = None  # else the end would be printed again
        super().close()


class _Work:
    """One piece of work, shown in a bar; in a new bar where less is done than before, as of another part of it."""

    def __init__(self, kind: Callable[..., tqdm], stack: ExitStack, work: str) -> None:
        self.kind, self.stack = kind, stack
        self.bar: tqdm | None = None
        self.work = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in work)

    def __call__(self, done: int, total: int, note: str = "") -> None:
        if self.bar is None or done < self.bar.n:
            made = self.kind(desc=self.work, initial=done, total=total or None, miniters=1)
            self.bar = self.stack.enter_context(closing(made))
        self.bar.total = total or None
        self.bar.set_postfix_str(note, refresh=False)
        self.bar.update(done - self.bar.n)
        if done == total != self.bar.last_print_n and self.bar.leave:
            self.bar.refresh()
