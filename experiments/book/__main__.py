"""Judges and draws a book of experiments again, from its numbers, by the rules of today. Nothing is measured.

    python -m experiments.book [FOLDER]

Each chapter's page, the front page and the story are written anew. The folder is figures/book unless it is named.
"""

import sys
from dataclasses import replace
from pathlib import Path

from sinkinterp.checks import InputError, refusal
from sinkinterp.pages import book
from sinkinterp.runs.experiment import load_experiment


def draw_again(folder: Path) -> list[Path]:
    """Writes the pages of a book anew, and returns its front page and story.

    Raises InputError, before anything is written, for numbers that are damaged or of another experiment.
    """
    judged = []
    for chapter in book.chapters_in(folder):
        experiment = load_experiment(chapter.name)
        table = replace(chapter.table, title=experiment.claim)
        what = f"{folder / chapter.stem}.json does not hold the rows of {chapter.name}"
        with refusal(what, "reproduce it again", (InputError, Exception)):  # rows of another one fail in any way
            verdicts = experiment.verdicts(table, chapter.scale)
            drawn = experiment.digest(table), experiment.draw(table)
        judged.append((replace(chapter, table=table, verdicts=verdicts), *drawn))
    for chapter, digest, figure in judged:
        book.write_numbers(folder, chapter, force=True)
        book.write_page(folder, chapter, digest, figure, force=True)
        print(f"drew {chapter.stem}")
    return book.write_front_pages(folder, force=True)


if __name__ == "__main__":
    try:
        for page in draw_again(Path(*sys.argv[1:2] or ["figures/book"])):
            print(f"wrote {page}")
    except InputError as error:
        sys.exit(f"error: {error}")
