"""The terminal: what a command says, its tables, and the files that it writes before it prints."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table as RichTable
from rich.text import Text

from ..checks import InputError, on_one_line, visible
from ..files import Content, write_file

if TYPE_CHECKING:
    from ..report.readings import TokenText
    from ..report.report import Report
    from ..table import Table

Part: TypeAlias = "Table | Text | str"  # of what a command prints
Wanted = tuple[Path | None, Callable[[], Content]]  # a file, None where nobody asked for it, and what makes it
PIPE_WIDTH = 120  # columns where standard output is a pipe or a file


class _Console(Console):
    """Prints control characters in names and texts as escapes, such as \\x1b: a terminal would obey them."""

    def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


console = _Console(emoji=False, width=None if sys.stdout is not None and sys.stdout.isatty() else PIPE_WIDTH)
error_console = _Console(stderr=True, emoji=False)


class Stream:
    """A standard stream of a command. It keeps the first error of the system, and drops what is printed after it."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.error: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        self._try(self.stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._try(self.stream.flush)

    def _try(self, act: Callable[..., Any], *given: str) -> None:
        if self.error is None:
            try:
                act(*given)
            except OSError as error:
                self.error = error
                with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
                    os.dup2(nowhere.fileno(), self.stream.fileno())  # for what is left in its buffer


@contextmanager
def streams() -> Iterator[Stream]:
    """Lets no error of the standard streams end the block. Yields the standard output; a closed one takes anything."""
    given = sys.stdout, sys.stderr
    out, error = (Stream(open(os.devnull, "w") if stream is None else stream) for stream in given)  # noqa: SIM115
    for stream in (out, error):  # a terminal may lack letters of a table
        getattr(stream.stream, "reconfigure", lambda **how: None)(errors="backslashreplace")
    sys.stdout, sys.stderr = out, error
    try:
        yield out
        out.flush()
    finally:
        error.flush()
        sys.stdout, sys.stderr = given


def say(work: str) -> None:
    """Says what runs now, on standard error, before the libraries are imported that it needs."""
    print_line(work)
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    disable_progress_bar()
    set_verbosity_error()


def print_text(text: str) -> None:
    """Prints a text on standard output, as it is."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def print_line(text: str, **style: Any) -> None:
    """Prints one line on standard error."""
    error_console.print(on_one_line(text), markup=False, highlight=False, soft_wrap=True, **style)


def print_table(table: "Table") -> None:
    """Prints a table with its title above, and its note below in lines as wide as the terminal."""
    rows = [{on_one_line(name): on_one_line(row[name]) for name in row} for row in table.texts()]
    texts = {name: [name, *(row[name] for row in rows)] for name in (rows[0] if rows else ())}
    widths = _widths(texts, console.width - 1)
    left_out = "; ".join(name for name in texts if name not in widths)
    note = f"\nNot shown, since {console.width} columns of text are too few: {left_out}" if left_out else ""
    grid = RichTable()
    are_text = {on_one_line(name): table.is_text(name) for name in table.frame}
    for name, width in widths.items():
        grid.add_column(escape(name), justify="left" if are_text[name] else "right", width=width)
    for row in rows:
        grid.add_row(*(escape(row[name]) for name in widths))
    if table.title:  # above the grid, at whose width it would wrap
        console.print(escape(on_one_line(table.title)), style="table.title", highlight=False)
    console.print(grid)
    if below := visible(table.note) + note:
        console.print(escape(below.strip()), style="table.caption", highlight=False)


def _widths(texts: dict[str, list[str]], room: int) -> dict[str, int]:
    """The widths of the first columns that fit where no word is cut, at least two. They share the room that is left."""
    least = {name: max(cell_len(word) for text in own for word in text.split() or [""]) for name, own in texts.items()}
    ends = accumulate(width + 3 for width in least.values())
    fitting = {name: least[name] for i, (name, end) in enumerate(zip(least, ends, strict=True)) if i < 2 or end <= room}
    room = max(0, room - sum(fitting.values()) - 3 * len(fitting))
    wanted = {name: max(map(cell_len, texts[name])) - width for name, width in fitting.items()}
    for i, name in enumerate(sorted(wanted, key=wanted.__getitem__)):
        more = min(wanted[name], room // (len(wanted) - i))
        fitting[name], room = fitting[name] + more, room - more
    return fitting


def print_written(path: Path) -> None:
    """Prints that a file was written, and its size, on standard error."""
    print_line(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)")


def show(parts: Iterable[Part], form: str | None) -> None:
    """Prints tables and texts; in a format, the tables alone: JSON as one list of all."""
    from ..table import FORMATS, Table  # whose pandas takes longer than all that a wrong option needs

    if form is None:
        for part in parts:
            if isinstance(part, Table):
                print_table(part)
            else:
                console.print(part, markup=False, highlight=False, soft_wrap=isinstance(part, str))
        return
    tables = [part for part in parts if isinstance(part, Table)]
    if form == "json":
        print(json.dumps([table.to_dict() for table in tables], indent=1))
    else:
        print("\n\n".join(FORMATS[_ENDINGS[form]](table).rstrip("\n") for table in tables))


_ENDINGS = {"csv": ".csv", "markdown": ".md", "latex": ".tex"}


def deliver(parts: Iterable[Part], *files: Wanted, form: str | None = None) -> None:
    """Writes the files, then prints tables and texts. The files are new, or the user gave --force.

    Raises InputError at the end for each file that could not be written, after the others and the prints.
    """
    errors = []
    for path, content in files:
        if path is not None:
            try:
                write_file(path, content())
                print_written(path)
            except InputError as error:
                errors.append(str(error))
    show(parts, form)
    if errors:
        raise InputError("; ".join(errors))


LINES, SHADES, STRONGEST, ROWS = 14, " ░▒▓█", 5, 8


def brief(sentence: str, table: "Table", note: str | None = None, *, full: "Sequence[Table]" = ()) -> list[Part]:
    """A sentence, then all tables if there are `full` ones, else the first rows of one table with its note."""
    if full:
        return [Text(sentence), *full]
    count = f" ({ROWS} of {len(table.frame)} rows, the rest with --full)" if len(table.frame) > ROWS else ""
    first = replace(table, frame=table.frame.head(ROWS), title=table.title + count, note="")
    below = table.note if note is None else note
    return [Text(sentence), first, Text(below, style="table.caption"), "All tables: --full. A page: --out FILE.html."]


def overview(report: "Report", epsilon: float, word: "TokenText") -> Iterator[Part]:
    """The parts of the overview, at most 40 lines on 100 columns."""
    from ..report.readings import protocol_note
    from ..report.summary import sink_summary, sink_verdict

    yield Text(sink_verdict(report, epsilon, word))
    yield replace(sink_summary(report, epsilon), note="")
    yield head_blocks(report)
    yield Text(strongest_heads(report))
    yield Text(protocol_note(report, epsilon), style="table.caption")
    yield "All tables: --full. A page: --out FILE.html. Every number: --save FILE.safetensors, .csv or .json."


def head_blocks(report: "Report") -> Text:
    """A block for each head, darker and redder with its alpha_1; a line for each layer, or for several."""
    alpha, layers = report.alpha().nanmean(0), report.attention_layers
    together, wide = -(-len(layers) // LINES), 2 if alpha.shape[1] <= LINES * 2 else 1
    line, several = ("a layer", "") if together == 1 else (f"{together} layers", ", the largest of the layers")
    blocks = Text(f"alpha_1 of every head: a line is {line}, a column a head{several}; blank 0, full 1\n")
    for start in range(0, len(layers), together):
        chosen = layers[start : start + together]
        name = f"{chosen[0]}" if len(chosen) == 1 else f"{chosen[0]}-{chosen[-1]}"
        blocks.append(f"{name:>7} ")
        for value in alpha[start : start + together].amax(0).tolist():
            share = min(max(value, 0.0), 1.0)
            style = f"rgb({int(90 + 165 * share)},{90 - int(60 * share)},90)"
            blocks.append(SHADES[round(share * (len(SHADES) - 1))] * wide, style)
        blocks.append("\n")
    blocks.rstrip()
    return blocks


def strongest_heads(report: "Report") -> str:
    """The heads with the largest alpha_1, as layer.head."""
    alpha = report.alpha().nanmean(0)
    order = alpha.flatten().argsort(descending=True)[:STRONGEST].tolist()
    places = [divmod(i, alpha.shape[1]) for i in order]
    named = (f"{report.attention_layers[i]}.{head} {alpha[i, head]:.2f}" for i, head in places)
    return f"Strongest heads (layer.head alpha_1): {', '.join(named)}"
