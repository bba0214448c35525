"""The terminal: errors as one line, progress bars, tables, files written whole."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable

from ..errors import InputError
from ..files import write_text
from ..table import Table

WIDE = 120  # columns of a pipe or a file
console = Console(width=None if sys.stdout.isatty() else WIDE)
errors = Console(stderr=True)


@contextmanager
def plain_errors() -> Iterator[None]:
    """A user's mistake as one line on standard error and exit code 2; an interrupt as exit code 130."""
    try:
        yield
    except InputError as error:
        errors.print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt as interrupt:
        errors.print("interrupted; what was saved so far is kept, and the same command goes on from there")
        raise typer.Exit(130) from interrupt


def progress_bars() -> Progress:
    """Bars with what is done, on standard error."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=errors)


def bar(progress: Progress, words: str) -> Callable[[int, int], None]:
    """A progress bar that appears with its first news."""
    bars: list[TaskID] = []

    def on_news(done: int, of: int) -> None:
        if not bars:
            bars.append(progress.add_task(words, total=of))
        progress.update(bars[0], completed=done)

    return on_news


def quiet_libraries() -> None:
    """Transformers' own progress bars off: ours are enough."""
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    disable_progress_bar()
    set_verbosity_error()


def show(table: Table) -> None:
    """The table on the terminal."""
    grid = RichTable(title=table.title, caption=table.note, title_justify="left", caption_justify="left")
    rows = table.display_rows()
    for name in rows[0] if rows else ():
        grid.add_column(name, justify="left" if table.is_text(name) else "right")
    for row in rows:
        grid.add_row(*map(escape, row.values()))
    console.print(grid)


def write(path: Path, text: str) -> None:
    """Writes a file, whole or not at all, and says so."""
    write_text(path, text)
    wrote(path)


def wrote(path: Path) -> None:
    """Says that a file was written."""
    console.print(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)", highlight=False)
