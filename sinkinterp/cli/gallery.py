"""The command that draws the gallery: parses, calls, prints."""

from pathlib import Path
from typing import Annotated

import typer

from .terminal import plain_errors, progress_bars, quiet_libraries, write, wrote


def gallery(
    out: Annotated[Path, typer.Option(help="Folder of the page and its pictures.")] = Path("figures"),
    pictures: Annotated[bool, typer.Option(help="Also write some of the figures as .png: needs kaleido.")] = True,
) -> None:
    """Draw every view from the checkpoints that ship."""
    with plain_errors():
        with progress_bars() as progress:
            from ..pages.export import save_figure
            from ..pages.gallery import gallery as drawn

            quiet_libraries()
            found = drawn(lambda name: progress.update(progress.add_task(f"measuring {name}", total=1), completed=1))
        write(out / "gallery.html", found.html)
        for name, figure in found.previews.items() if pictures else ():
            wrote(save_figure(figure, out / f"{name}.png"))


def mount(app: typer.Typer) -> None:
    """Adds the commands of this file to the command line."""
    app.command()(gallery)
