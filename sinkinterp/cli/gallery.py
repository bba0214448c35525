"""The command that draws the gallery."""

from contextlib import nullcontext
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
        from ..pages.export import one_browser, save_figure
        from ..pages.gallery import gallery as draw_gallery

        quiet_libraries()

        def on_model(name: str) -> None:
            progress.update(progress.add_task(f"measuring {name}", total=1), completed=1)

        drawn = draw_gallery(on_model)
    page = out / "gallery.html"
    write_text(page, drawn.html)
    print_written(page)
    previews = list(drawn.previews.items() if pictures else ())
    first, others = previews[:1], previews[1:]
    for name, figure in first:  # which says in one line where the browser is missing
        print_written(save_figure(figure, out / f"{name}.png"))
    with one_browser() if others else nullcontext():
        for name, figure in others:
            print_written(save_figure(figure, out / f"{name}.png"))
