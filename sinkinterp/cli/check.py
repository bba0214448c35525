"""The command that checks the backends on a model."""

import typer

from .hub import offline_if_unreachable
from .options import Model
from .terminal import print_table, quiet_libraries


def check(model: Model) -> None:
    """Compare every backend with dense attention and with each other on a model; exit code 1 where they differ."""
    from ..backends.model_files import load_model
    from ..measurement.parity import agrees, parity

    quiet_libraries()
    offline_if_unreachable(model)
    table = parity(load_model(model), model)
    print_table(table)
    if not agrees(table):
        raise typer.Exit(1)
