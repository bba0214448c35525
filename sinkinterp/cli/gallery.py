"""The command that draws the gallery."""

from pathlib import Path
from typing import Annotated

import typer

from ..files import write_text
from .terminal import print_written, progress_bars, quiet_libraries
from .values import output_folder

OUT = "Folder of the page and its pictures."


def gallery(
    out: Annotated[Path, typer.Option(help=OUT, parser=output_folder)] = Path("figures"),
    pictures: Annotated[bool, typer.Option(help="Also write some of the figures as .png: needs kaleido.")] = True,
) -> None:
    """Draw every view from the checkpoints that ship, and from the models of `make models` where they are here."""
    with progress_bars() as progress:
        from ..pages.export import save_pictures
        from ..pages.gallery import gallery as draw_gallery

        quiet_libraries()

        def on_model(name: str) -> None:
            progress.update(progress.add_task(f"measuring {name}", total=1), completed=1)

        drawn = draw_gallery(on_model)
    page = out / "gallery.html"
    write_text(page, drawn.html)
    print_written(page)
    previews = {out / f"{name}.png": figure for name, figure in drawn.previews.items()}
    for written in save_pictures(previews) if pictures else ():
        print_written(written)
