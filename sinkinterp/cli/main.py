"""The command line: every command, in the order of the help text."""

from typing import Annotated

import typer

from .book import book
from .check import check
from .demo import demo
from .domains import domains
from .errors import Command, Program
from .families import families
from .finetune import finetune
from .gallery import gallery
from .listing import listing
from .measure import measure
from .reproduce import reproduce
from .serve import serve
from .terminal import console
from .train import train
from .view import view

app = typer.Typer(cls=Program, pretty_exceptions_enable=False)
for command in (train, finetune, gallery, view, serve, reproduce, book, demo, measure, domains, check, families):
    app.command(cls=Command)(command)
app.command("list", cls=Command)(listing)


def _print_version(is_asked: bool) -> bool:
    if is_asked:
        from .. import __version__

        console.print(f"sinkinterp {__version__}", highlight=False)
        raise typer.Exit
    return is_asked


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Attention sinks: read them, move them, train them away."""
