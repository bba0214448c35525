"""The command that judges and draws a book again."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ..errors import InputError
from .terminal import print_written, progress_bar, progress_bars, quiet_libraries
from .values import output_folder

FOLDER = "Folder of the book: where `sinkinterp reproduce` wrote its numbers."
PICTURES = "Also write each chapter's figure as .png, for the front page: needs kaleido."
PREVIEW = 1  # pixels per point


def book(
    folder: Annotated[Path, typer.Argument(help=FOLDER, parser=output_folder)] = Path("figures/book"),
    pictures: Annotated[bool, typer.Option(help=PICTURES)] = True,
) -> None:
    """Judge and draw a book of experiments again, from its numbers, by the rules of today. Nothing is measured."""
    with progress_bars() as progress:
        from ..pages.book import chapters_in, picture_of, write_front_page, write_numbers, write_page
        from ..pages.export import save_pictures
        from ..runs.experiment import load_experiment

        quiet_libraries()
        chapters = chapters_in(folder)
        if not chapters:
            raise InputError(f"{folder} holds no numbers of experiments; make them with `sinkinterp reproduce NAME`")
        figures = {}
        for written in progress.track(chapters, description="drawing pages"):
            experiment = load_experiment(written.name)
            chapter = replace(written, verdicts=experiment.verdicts(written.table))
            write_numbers(folder, chapter)
            figure = figures[picture_of(folder, chapter.name)] = experiment.draw(chapter.table)
            write_page(folder, chapter, experiment.digest(chapter.table), figure)
        on_picture = progress_bar(progress, "drawing pictures")
        for i, _ in enumerate(save_pictures(figures, PREVIEW) if pictures else (), 1):
            on_picture(i, len(figures))
        print_written(write_front_page(folder))
