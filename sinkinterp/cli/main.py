"""The command line: every command, in the order of the help text."""

import typer

from .check import check
from .demo import demo
from .domains import domains
from .families import families
from .finetune import finetune
from .gallery import gallery
from .measure import measure
from .reproduce import reproduce
from .serve import serve
from .train import train
from .view import view

app = typer.Typer(
    help="Attention sinks: read them, move them, train them away.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (train, finetune, gallery, view, serve, reproduce, demo, measure, domains, check, families):
    app.command()(command)
