"""Judges and draws the book of experiments again, from its numbers, by the rules of today. Nothing is measured.

    python -m experiments.book [--pictures] [CHAPTER ...]

Writes the page of each chapter, or of those that are named, the front page and the story, RESULTS.md and the other
texts with cells, and the lists of docs/. --pictures: the pictures of these texts too, which needs a browser.
"""

import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from sinkinterp._experiments import summary_of
from sinkinterp.checks import InputError, refusal
from sinkinterp.files import write_file
from sinkinterp.runs.experiment import load_experiment

from . import cells, models, pictures, story, verdicts
from .chapter import chapters_in, write_numbers, write_page

FINDINGS: dict[str, str] = tomllib.loads(Path(__file__).with_name("findings.toml").read_text(encoding="utf-8"))


def draw_again(folder: Path, stems: Sequence[str] = ()) -> list[Path]:
    """Writes the pages of a book anew, all or those of some chapters, and returns its front page and story.

    Raises InputError, before anything is written, for numbers that are damaged or of another experiment.
    """
    judged = []
    for chapter in chapters_in(folder):
        if stems and chapter.stem not in stems:
            continue
        experiment = load_experiment(chapter.name)
        table = replace(chapter.table, title=experiment.claim)
        what = f"{folder / chapter.stem}.json does not hold the rows of {chapter.name}"
        with refusal(what, "reproduce it again", (InputError, Exception)):  # rows of another one fail in any way
            found = experiment.verdicts(table, chapter.scale)
            chapter = replace(chapter, summary=summary_of(chapter.name), table=table, verdicts=found)
            drawn = experiment.digest(table), experiment.draw(cells.with_names(replace(table, title=chapter.title)))
        judged.append((chapter, *drawn))
    for chapter, digest, figure in judged:
        finding = FINDINGS.get(chapter.stem, "") if folder == cells.BOOK else ""  # it is of the rows there
        write_numbers(folder, chapter)
        write_page(folder, chapter, digest, figure, finding=finding)
    return story.write_front_pages(folder)


def write_texts() -> Iterator[Path]:
    """Writes the texts whose numbers are cells, and the lists of verdicts and of models."""
    for file, text in (*cells.texts(), (verdicts.FILE, verdicts.page()), (models.FILE, models.page())):
        write_file(file, text)
        yield file


if __name__ == "__main__":
    stems = [word for word in sys.argv[1:] if word != "--pictures"]
    try:
        written = draw_again(cells.BOOK, stems)
        written += pictures.write(cells.ROOT / "figures") if "--pictures" in sys.argv else []
        written += write_texts()
    except InputError as error:
        sys.exit(f"error: {error}")
    for file in written:
        print(f"wrote {file}")
