"""The book of experiments: a page for each, and a front page with every claim and its verdicts."""

from collections.abc import Sequence
from pathlib import Path

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from ..errors import InputError
from ..files import write_json, write_text
from ..measurement.position_swap import from_zero
from ..runs.rules import standing
from ..seals import signed
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


def write_chapter(folder: Path, chapter: Chapter, digest: Table, figure: go.Figure) -> list[Path]:
    """The files of a chapter, and of the front page that counts it, written to the folder of the book."""
    return [write_numbers(folder, chapter), write_page(folder, chapter, digest, figure), *write_front_pages(folder)]


def write_numbers(folder: Path, chapter: Chapter) -> Path:
    """What the book keeps of a chapter."""
    numbers = folder / f"{chapter.stem}.json"
    write_json(numbers, signed(chapter.to_dict()), indent=1)
    return numbers


def write_page(folder: Path, chapter: Chapter, digest: Table, figure: go.Figure) -> Path:
    """The page of a chapter, and beside it the plotly that all pages of the book share."""
    html, library = folder / f"{chapter.stem}.html", folder / PLOTLY
    check_plotly(folder)
    if not library.is_file():
        write_text(library, get_plotlyjs())
    write_text(html, chapter_page(chapter, digest, figure))
    return html


def check_plotly(folder: Path) -> None:
    """Raises InputError unless the plotly of a book, which its pages run, is that of this installation, or absent."""
    library = folder / PLOTLY
    if library.is_file() and library.read_bytes() != get_plotlyjs().encode():
        raise InputError(f"{library} is not the one of this plotly, and the pages would run it; remove it")


def write_front_pages(folder: Path) -> list[Path]:
    """The front page of a book, and the story that its numbers tell, if they tell one."""
    chapters, folder = chapters_in(folder), Path(folder)
    check_plotly(folder)
    has_story = bool(passages(chapters))
    pages = {folder / INDEX: front_page(chapters, PLOTLY, STORY if has_story else None)}
    if has_story:
        pages[folder / STORY] = story_page(chapters, PLOTLY, INDEX)
    for file, html in pages.items():
        write_text(file, html)
    return list(pages)


def files_of(folder: Path, stems: Sequence[str]) -> list[Path]:
    """The files of a book that has these chapters; plotly's, once written, stays."""
    chapters = (folder / f"{stem}.{ending}" for stem in stems for ending in ("json", "html"))
    return [folder / INDEX, folder / STORY, *chapters]


def chapter_page(chapter: Chapter, digest: Table, figure: go.Figure) -> str:
    """The page of one experiment: claim, figure, verdicts, digest, all rows, and how the numbers were made."""
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
    lead = f"The claim: {chapter.table.title}" + (f" Here {held}." if held else "")
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
