"""The terminal: errors as one line, progress bars, tables, and names of files that were written."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable

from ..data.progress import BARS
from ..errors import InputError
from ..table import Table

PIPE_WIDTH = 120  # columns where standard output is a pipe or a file
console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
error_console = Console(stderr=True)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Prints a user's mistake as one line on standard error and exits with code 2; with code 130 at an interrupt."""
    bars = BARS.set(False)  # commands show bars of their own
    try:
        yield
    except InputError as error:
        error_console.print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt as interrupt:
        error_console.print("interrupted; what was saved so far is kept, and the same command goes on from there")
        raise typer.Exit(130) from interrupt
    finally:
        BARS.reset(bars)


def progress_bars() -> Progress:
    """Progress bars on standard error."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=error_console)


def progress_bar(progress: Progress, description: str) -> Callable[[int, int], None]:
    """Returns a function that takes how much is done, of how much; its first call adds a bar to the progress bars."""
    bars: list[TaskID] = []

    def update(done: int, total: int) -> None:
        if not bars:
            bars.append(progress.add_task(description, total=total))
        progress.update(bars[0], completed=done)

    return update


def quiet_libraries() -> None:
    """Turns the progress bars and warnings of transformers off: the commands show their own."""
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    disable_progress_bar()
    set_verbosity_error()


def print_table(table: Table) -> None:
    """Prints a table with its title above and its note below."""
    grid = RichTable(title=table.title, caption=table.note, title_justify="left", caption_justify="left")
    rows = table.display_rows()
    for name in rows[0] if rows else ():
        grid.add_column(name, justify="left" if table.is_text(name) else "right")
    for row in rows:
        grid.add_row(*map(escape, row.values()))
    console.print(grid)


def print_written(path: Path) -> None:
    """Prints that a file was written, and its size."""
    console.print(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)", highlight=False)
