"""The book of experiments: a page for each, and a front page with every claim and its verdicts."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from ..errors import InputError
from ..files import write_json, write_text
from ..measurement.position_swap import from_zero
from ..runs.rules import Outcome, Verdict, standing
from ..seals import SHA256, check_signed, signed
from ..table import Cell, Table
from .document import Scripts, asset, document, glossary
from .page import PAGE_STYLE, Section, page

INDEX = "index.html"
CHIPS = 8  # verdicts on a card; the others are folded
_CHAPTER = {"name", "summary", "verdicts", "provenance"}  # what tells a chapter from other JSON
RULES_ARE = "A rule says which numbers support the claim; the module of the experiment holds it."
NO_VERDICT = "No verdict: scale smoke only checks the path."
PLOTLY = "plotly.min.js"  # one for all pages of a book


@dataclass(frozen=True)
class Chapter:
    """What the book says of one experiment.

    provenance: how the numbers were made: command, scale, versions, commit, machine, seconds.
    """

    name: str
    summary: str
    table: Table
    verdicts: Sequence[Verdict]
    provenance: Mapping[str, Cell]

    @property
    def scale(self) -> str:
        """The scale at which the numbers were made."""
        return str(self.provenance.get("scale", ""))

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready copy: the table's title, note and rows, and beside them verdicts and provenance."""
        verdicts = [asdict(verdict) for verdict in self.verdicts]
        return {
            **self.table.to_dict(),
            "name": self.name,
            "summary": self.summary,
            "verdicts": verdicts,
            "provenance": dict(self.provenance),
        }

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> "Chapter":
        """The inverse of `to_dict`. Raises InputError for what is not a chapter."""
        if not all(isinstance(plain[name], str) for name in ("name", "summary", "title", "note")):
            raise InputError("its name, summary, title and note are texts")
        if not isinstance(plain["provenance"], Mapping) or not all(map(_is_row, [plain["provenance"], *plain["rows"]])):
            raise InputError("its rows and its provenance are cells by name")
        verdicts = [Verdict(v["claim"], Outcome(v["outcome"]), v["reason"]) for v in plain["verdicts"]]
        return Chapter(plain["name"], plain["summary"], Table.from_dict(plain), verdicts, plain["provenance"])


def write_chapter(folder: Path, chapter: Chapter, digest: Table, figure: go.Figure) -> list[Path]:
    """The files of a chapter, and of the front page that counts it, written to the folder of the book."""
    picture_of(folder, chapter.name).unlink(missing_ok=True)  # it shows older numbers
    return [write_numbers(folder, chapter), write_page(folder, chapter, digest, figure), write_front_page(folder)]


def write_numbers(folder: Path, chapter: Chapter) -> Path:
    """What the book keeps of a chapter."""
    numbers = folder / f"{chapter.name}.json"
    write_json(numbers, signed(chapter.to_dict()), indent=1)
    return numbers


def write_page(folder: Path, chapter: Chapter, digest: Table, figure: go.Figure) -> Path:
    """The page of a chapter, and beside it the plotly that all pages of the book share."""
    html, library = folder / f"{chapter.name}.html", folder / PLOTLY
    if not library.is_file():
        write_text(library, get_plotlyjs())
    write_text(html, chapter_page(chapter, digest, figure))
    return html


def write_front_page(folder: Path) -> Path:
    """The front page of a book, with the pictures of chapters that lie in its folder."""
    chapters = chapters_in(folder)
    write_text(folder / INDEX, front_page(chapters, [c.name for c in chapters if picture_of(folder, c.name).exists()]))
    return folder / INDEX


def files_of(folder: Path, names: Sequence[str]) -> list[Path]:
    """The files of a book that has these chapters; plotly's, once written, stays."""
    endings = ("json", "html", "png")
    return [folder / INDEX, *(folder / f"{name}.{ending}" for name in names for ending in endings)]


def picture_of(folder: Path, name: str) -> Path:
    """The file of the picture of a chapter's figure, for the front page."""
    return folder / f"{name}.png"


def chapter_page(chapter: Chapter, digest: Table, figure: go.Figure) -> str:
    """The page of one experiment: claim, verdicts, figure, digest, all rows, and how the numbers were made."""
    command, rows = chapter.provenance.get("command"), from_zero(chapter.table)
    sections = [
        Section(_heading(chapter), RULES_ARE if chapter.verdicts else NO_VERDICT, tables=[verdict_table(chapter)]),
        Section("Figure", "", [figure]),
        Section("In short", from_zero(digest).note, tables=[from_zero(digest)]),
        *([] if len(digest.rows) == len(chapter.table.rows) else [Section("All rows", "", tables=[rows])]),
        Section("How these numbers were made", f"Make them again: {command}", tables=[_provenance(chapter)]),
    ]
    return page(chapter.summary, f"The claim: {chapter.table.title}", sections, PLOTLY)


def verdict_table(chapter: Chapter) -> Table:
    """A row per rule."""
    rows = tuple({"rule": v.claim, "verdict": v.outcome.value, "because": v.reason} for v in chapter.verdicts)
    return Table(_heading(chapter), "" if rows else NO_VERDICT, rows)


def _heading(chapter: Chapter) -> str:
    """The heading of the verdicts: how many rules hold."""
    held = standing(chapter.verdicts)
    return f"Verdicts: {held}" if held else "Verdicts"


def chapters_in(folder: Path) -> list[Chapter]:
    """The chapters whose numbers lie in a folder, by name. Raises InputError for a file that is damaged."""
    files = sorted(filter(Path.is_file, folder.glob("*.json")))  # a pipe of that name would never end
    return [chapter for chapter in map(chapter_in, files) if chapter is not None]


def chapter_in(file: Path) -> Chapter | None:
    """The chapter of a file, None where it is other JSON. Raises InputError where it is damaged."""
    try:
        plain = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(plain, dict) or len(_CHAPTER - plain.keys()) > 1:  # one name may be damaged
            return None
        chapter = Chapter.from_dict(plain)
        if chapter.name != file.stem or plain.keys() - chapter.to_dict().keys() - {SHA256}:
            raise InputError(f"it calls itself {chapter.name!r}, and holds {', '.join(plain)}")
        if SHA256 in plain:  # earlier versions wrote none
            check_signed(plain, plain[SHA256])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{file} is damaged: {error}; remove it, or reproduce it again") from error
    return chapter


def _is_row(row: Any) -> bool:
    return isinstance(row, Mapping) and all(isinstance(cell, str | float | int | None) for cell in row.values())


def front_page(chapters: Sequence[Chapter], pictured: Collection[str] = ()) -> str:
    """Every claim with its verdicts, as a page that filters them. All text from data is escaped.

    pictured: the names of the chapters that have a picture beside the page.
    """
    counts = {outcome: sum(v.outcome is outcome for c in chapters for v in c.verdicts) for outcome in Outcome}
    buttons = "".join(
        f'<button data-show="{outcome}" class="{_style(outcome)}">{outcome} ({count})</button>'
        for outcome, count in counts.items()
        if count
    )
    cards = "\n".join(_card(chapter, chapter.name in pictured) for chapter in chapters)
    body = (
        "<h1>Claims about attention sinks, and what our runs say</h1>"
        '<p class="lead">Each card is a table or figure of a paper. Rules in its module say which numbers '
        "support its claim. Click a card for the numbers.</p>"
        f'<nav class="filter"><button data-show="">all ({sum(counts.values())})</button>{buttons}</nav>\n'
        f"<main>{cards}</main>\n{glossary()}"
    )
    scripts = Scripts([asset("book.js")], show_files=bool(pictured))
    return document("Claims about attention sinks", PAGE_STYLE + asset("book.css"), body, scripts)


def _card(chapter: Chapter, is_pictured: bool) -> str:
    chips = list(map(_chip, chapter.verdicts))
    shown, hidden = "".join(chips[:CHIPS]), "".join(chips[CHIPS:])
    if hidden:
        hidden = f"<details><summary>{len(chips) - CHIPS} more</summary><ul>{hidden}</ul></details>"
    scale, name, held = escape(chapter.scale), escape(chapter.name), escape(standing(chapter.verdicts))
    about = f"{held}; scale: {scale}" if held else f"scale: {scale}" if chapter.verdicts else NO_VERDICT
    picture = f'<a href="{name}.html"><img src="{name}.png" alt="its figure" loading="lazy"></a>' if is_pictured else ""
    return (
        f'<article><h2><a href="{name}.html">{escape(chapter.summary)}</a></h2>{picture}'
        f"<p>{escape(chapter.table.title)}</p><ul>{shown}</ul>{hidden}<footer>{about}</footer></article>"
    )


def _chip(verdict: Verdict) -> str:
    outcome = verdict.outcome
    return (
        f'<li data-outcome="{outcome}"><b class="{_style(outcome)}">{outcome}</b> {escape(verdict.claim)}'
        f"<small>{escape(verdict.reason)}</small></li>"
    )


def _style(outcome: Outcome) -> str:
    return outcome.value.replace(" ", "-")


def _provenance(chapter: Chapter) -> Table:
    rows = tuple({"what": name, "value": str(value)} for name, value in chapter.provenance.items())
    return Table("Provenance", "", rows)
