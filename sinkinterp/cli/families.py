"""The command that lists which architectures can be measured."""

from pathlib import Path
from typing import Annotated

import typer

from .terminal import print_table, print_written, progress_bar, progress_bars, quiet_libraries
from .values import output_file


def families(
    names: Annotated[
        list[str] | None, typer.Argument(help="Families, as transformers calls them; default all.")
    ] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the table to this file.", parser=output_file)] = None,
) -> None:
    """Build every causal architecture of transformers tiny and say which can be measured; exit code 1 at an error."""
    with progress_bars() as progress:
        from ..checks import nearest
        from ..errors import InputError
        from ..files import write_text
        from ..measurement.families import FAMILIES, is_sound, sweep

        unknown = sorted(set(names or ()) - set(FAMILIES))
        if unknown:
            near = nearest(unknown[0], FAMILIES) or "; give names such as gpt2 or bloom"
            raise InputError(f"transformers has no causal family {unknown[0]!r}{near}")
        quiet_libraries()
        table = sweep(names or FAMILIES, on_family=progress_bar(progress, "families"))
        if markdown is not None:
            write_text(markdown, table.to_markdown())
    print_table(table)
    if markdown is not None:
        print_written(markdown)
    if not is_sound(table):
        raise typer.Exit(1)
