"""The book of experiments: a page for each, and a front page with every claim and its verdicts."""

from collections.abc import Sequence
from pathlib import Path

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from ..applications.position_swap import from_zero
from ..files import write_text
from ..outputs import json_bytes, page_bytes, write_output
from ..runs.rules import Outcome, standing
from ..table import Table
from .chapters import NO_VERDICT, Chapter, chapters_in
from .front import front_page, why_ours_differs
from .page import Section, page
from .passages import passages
from .story import story_page

INDEX = "index.html"
STORY = "story.html"
RULES_ARE = "A rule says which numbers support the claim; the module of the experiment holds it."
PLOTLY = "plotly.min.js"  # one for all pages of a book


def write_chapter(folder: Path, chapter: Chapter, digest: Table, figure: go.Figure, force: bool = False) -> list[Path]:
    """The files of a chapter, and of the front page that counts it, written to the folder of the book.

    Raises InputError, as all that write here do, for a file that sinkinterp did not write, unless `force`.
    """
    numbers, html = write_numbers(folder, chapter, force), write_page(folder, chapter, digest, figure, force)
    return [numbers, html, *write_front_pages(folder, force)]


def write_numbers(folder: Path, chapter: Chapter, force: bool = False) -> Path:
    """What the book keeps of a chapter."""
    numbers = folder / f"{chapter.stem}.json"
    write_output(numbers, json_bytes(chapter.to_dict()), force)
    return numbers


def write_page(folder: Path, chapter: Chapter, digest: Table, figure: go.Figure, force: bool = False) -> Path:
    """The page of a chapter, and beside it the plotly that all pages of the book share."""
    html, library = folder / f"{chapter.stem}.html", folder / PLOTLY
    if not library.is_file():
        write_text(library, get_plotlyjs())
    write_output(html, page_bytes(chapter_page(chapter, digest, figure)), force)
    return html


def write_front_pages(folder: Path, force: bool = False) -> list[Path]:
    """The front page of a book, and the story that its numbers tell, if they tell one."""
    chapters, folder = chapters_in(folder), Path(folder)
    has_story = bool(passages(chapters))
    pages = {folder / INDEX: front_page(chapters, PLOTLY, STORY if has_story else None)}
    if has_story:
        pages[folder / STORY] = story_page(chapters, PLOTLY, INDEX)
    for file, html in pages.items():
        write_output(file, page_bytes(html), force)
    return list(pages)


def files_of(folder: Path, stems: Sequence[str]) -> list[Path]:
    """The files of a book that has these chapters; plotly's, once written, stays."""
    chapters = (folder / f"{stem}.{ending}" for stem in stems for ending in ("json", "html"))
    return [folder / INDEX, folder / STORY, *chapters]


def chapter_page(chapter: Chapter, digest: Table, figure: go.Figure) -> str:
    """The page of one experiment: claim, what fails, figure, verdicts, digest, all rows, how the numbers were made."""
    command, rows = chapter.provenance.get("command"), from_zero(chapter.table)
    about = f"{RULES_ARE} {why_ours_differs(chapter)}" if chapter.verdicts else NO_VERDICT
    sections = [
        Section("Figure", "", [figure]),
        Section(_heading(chapter), about.strip(), tables=[verdict_table(chapter)]),
        Section("In short", from_zero(digest).note, tables=[from_zero(digest)]),
        *([] if len(digest.rows) == len(chapter.table.rows) else [Section("All rows", "", tables=[rows])]),
        Section("How these numbers were made", f"Make them again: {command}", tables=[_provenance(chapter)]),
    ]
    held = standing(chapter.verdicts)
    fails = (f" It fails that {v.claim} ({v.reason})." for v in chapter.verdicts if v.outcome is Outcome.FAILS)
    lead = f"The claim: {chapter.table.title}" + (f" Here {held}.{''.join(fails)}" if held else "")
    return page(chapter.heading, lead, sections, PLOTLY)


def verdict_table(chapter: Chapter) -> Table:
    """A row per rule."""
    rows = tuple({"rule": v.claim, "verdict": v.outcome.value, "because": v.reason} for v in chapter.verdicts)
    return Table(_heading(chapter), "" if rows else NO_VERDICT, rows)


def _heading(chapter: Chapter) -> str:
    """The heading of the verdicts: how many rules hold."""
    held = standing(chapter.verdicts)
    return f"Verdicts: {held}" if held else "Verdicts"


def _provenance(chapter: Chapter) -> Table:
    rows = tuple({"what": name, "value": str(value)} for name, value in chapter.provenance.items())
    return Table("Provenance", "", rows)
