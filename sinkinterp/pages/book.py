"""The book of experiments: a page for each, a front page with every claim and what we found, and the story."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from textwrap import shorten

import plotly.graph_objects as go
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from ..errors import InputError
from ..files import write_text
from ..outputs import json_bytes, page_bytes, write_output
from ..report.columns import ALPHA_1, MODEL, SINK_1
from ..runs.catalogue import Scale, experiment_names
from ..runs.experiment import load_experiment
from ..runs.rules import Outcome, standing
from ..runs.training_figures import importances
from ..table import Table, published
from .chapters import Chapter, chapters_in
from .page import Section, page, rendered, with_figures
from .passages import FINDINGS, TOLD_BY, opening, passages

INDEX, STORY, PLOTLY = "index.html", "story.html", "plotly.min.js"  # files of a book; its pages share one plotly
GROUPS: Mapping[str, Sequence[str]] = {  # beginnings of the chapters' names
    "What a sink is": ("table01", "figure19", "figure04_scale", "figure03", "figure09", "figure10"),
    "What carries it": ("figure02", "massive", "removing", "patching", "figure07", "gpt2_circuit"),
    "Where it is": ("table07", "table03", "table10_fixed", "marked", "figure05_prefix", "figure06", "propositions"),
    "What takes its place": ("twins", "text_twins", "table04", "table05", "table13", "table12"),
    "What prevents it": ("table06", "table14", "figure29", "normalisation", "equation32", "streaming", "figure30"),
    "When it comes in training": (
        "figure04_dynamics", "table09", "table02", "figure05_data", "table10_batch", "table11", "section7",
    ),
}  # fmt: skip
OTHERS = "Other experiments"
THEIRS = "the paper's models, of 60 million parameters, have many heads, and most of them have no sink"
WHY = {
    Scale.DEMO: f"Why our number differs from the paper's: a single head decides Sink_1 of our toys; {THEIRS}.",
    Scale.TEXT: f"Why our number differs from the paper's: three to five heads decide Sink_1 of our small models; "
    f"{THEIRS}.",
    Scale.REAL: "Why our number differs from the paper's: it is another model, and a smaller one.",
}
BESIDE: Mapping[str, str] = {  # what is unlike in the protocol of the paper's numbers
    Scale.DEMO: "The paper reads its models at T=64, and ours have 16 tokens; both have no BOS.",
    Scale.TEXT: "The paper reads its models without BOS, and ours are trained and read with BOS first; T=64 for both.",
}
_NUMBER = re.compile(r"(?<![\w.])[+-]?\d[\d.,]*(?:e[+-]?\d+)?%?(?: \[[^\]]{1,40}\])?(?: (?:of|to) [+-]?\d[\d.,]*%?)?")


@dataclass(frozen=True)
class Card:
    """A chapter on the front page: its figure, if it can be drawn, and the colour of its verdict."""

    chapter: Chapter
    figure: go.Figure | None
    tone: str
    why: str


def write_chapter(folder: Path, chapter: Chapter, digest: Table, figure: go.Figure, force: bool = False) -> list[Path]:
    """Writes the files of a chapter, and of the front page that counts it, to the folder of the book.

    Raises InputError, as all that write here do, for a file that sinkinterp did not write, unless `force`.
    """
    numbers, html = write_numbers(folder, chapter, force), write_page(folder, chapter, digest, figure, force)
    return [numbers, html, *write_front_pages(folder, force)]


def write_numbers(folder: Path, chapter: Chapter, force: bool = False) -> Path:
    """Writes the numbers that the book keeps of a chapter."""
    numbers = folder / f"{chapter.stem}.json"
    write_output(numbers, json_bytes(chapter.to_dict()), force)
    return numbers


def write_page(folder: Path, chapter: Chapter, digest: Table, figure: go.Figure, force: bool = False) -> Path:
    """Writes the page of a chapter, and beside it the plotly that all pages of the book share."""
    html, library = folder / f"{chapter.stem}.html", folder / PLOTLY
    check_plotly(folder)
    if not library.is_file():
        write_text(library, get_plotlyjs())
    write_output(html, page_bytes(chapter_page(chapter, digest, figure)), force)
    return html


def check_plotly(folder: Path) -> None:
    """Raises InputError unless the plotly of a book, which its pages run, is that of this installation, or absent."""
    library = folder / PLOTLY
    if library.is_file() and library.read_bytes() != get_plotlyjs().encode():
        raise InputError(f"{library} is not the one of this plotly, and the pages would run it; remove it")


def write_front_pages(folder: Path, force: bool = False) -> list[Path]:
    """Writes the front page of a book, and the story if the book has numbers for it."""
    chapters, folder = chapters_in(folder), Path(folder)
    check_plotly(folder)
    has_story = bool(passages(chapters))
    pages = {folder / INDEX: front_page(chapters, PLOTLY, STORY if has_story else None)}
    if has_story:
        pages[folder / STORY] = story_page(chapters, PLOTLY, INDEX)
    for file, html in pages.items():
        write_output(file, page_bytes(html), force)
    return list(pages)


def files_of(folder: Path, stems: Sequence[str]) -> list[Path]:
    """The files of a book with these chapters. Plotly's file is never written anew."""
    chapters = (folder / f"{stem}.{ending}" for stem in stems for ending in ("json", "html"))
    return [folder / INDEX, folder / STORY, *chapters]


def chapter_page(chapter: Chapter, digest: Table, figure: go.Figure) -> str:
    """The page of one experiment: its result, figure, verdicts, digest, all rows, and how the numbers were made."""
    verdicts = verdict_table(chapter)
    rule = "A rule says which numbers support the claim; the module of the experiment holds it."
    beside = BESIDE.get(chapter.scale, "") if published(SINK_1) in chapter.table.columns else ""
    words = " ".join(filter(None, (rule, beside, why_ours_differs(chapter))))
    about = words if chapter.verdicts else chapter.found
    made = Table("", "", tuple({"what": name, "value": str(value)} for name, value in chapter.provenance.items()))
    sections = [
        Section("Figure", "", [figure]),
        Section(verdicts.title, about, tables=[verdicts]),
        Section("In short", digest.note, tables=[digest]),
        *([] if len(digest.rows) == len(chapter.table.rows) else [Section("All rows", "", tables=[chapter.table])]),
        Section("How these numbers were made", f"Make them again: {chapter.provenance.get('command')}", tables=[made]),
    ]
    failing = [verdict for verdict in chapter.verdicts if verdict.outcome is Outcome.FAILS]
    fails = (f" It fails that {v.claim} ({shorten(v.reason, 120, placeholder=' …')})." for v in failing)
    lead = "".join((chapter.heading.removesuffix("."), "" if chapter.heading.endswith("?") else ".", *fails))
    return page(chapter.title, lead, sections, PLOTLY)


def verdict_table(chapter: Chapter) -> Table:
    """A row per rule; the title says how many hold."""
    rows = tuple({"rule": v.claim, "verdict": v.outcome.value, "because": v.reason} for v in chapter.verdicts)
    held = standing(chapter.verdicts)
    return Table(f"Verdicts: {held}" if held else "Verdicts", "" if rows else chapter.found, rows)


def front_page(chapters: Sequence[Chapter], plotly: str | None = None, story: str | None = None) -> str:
    """Findings and claims as a page with a search and filters. All text from data is escaped.

    plotly: the path of a file with plotly.js, seen from the page. story: the path of the page that tells the findings.
    """
    judged = [chapter for chapter in chapters if not chapter.observes]
    counts = Counter(verdict.outcome for chapter in judged for verdict in chapter.verdicts)
    body = rendered(
        "templates/book.html",
        story=story,
        findings=[(told, _with_whole_numbers(told.text)) for told in passages(chapters, FINDINGS)],
        claims=sum(bool(chapter.verdicts) for chapter in judged),
        rules=sum(counts.values()),
        counts=[(outcome, _tone(outcome), counts[outcome]) for outcome in Outcome if counts[outcome]],
        scales=Counter(chapter.scale for chapter in chapters),
        groups=[(title, list(map(_card, inside))) for title, inside in _grouped(chapters)],
        tone=_tone,
        whole=_with_whole_numbers,
    )
    return with_figures("What is true of attention sinks", body, plotly, _BOOK[:1], _BOOK[1:])


_BOOK = ("templates/book.css", "templates/book.js")


def story_page(chapters: Sequence[Chapter], plotly: str | None = None, book: str | None = None) -> str:
    """The story as HTML text. Raises InputError unless the chapters support a passage.

    plotly: the path of a file with plotly.js. Without it the page holds plotly.js itself. book: the path of the book's
    front page, in the folder of its chapters. Without it there are no links.
    """
    told = passages(chapters)
    if not told:
        raise InputError(f"these numbers tell no story; it needs some of {', '.join(sorted(TOLD_BY.values()))}")
    title = "Where attention goes when it has nowhere to go"
    body = rendered("templates/story.html", title=title, told=told, opening=opening(), book=book)
    return with_figures(title, body, plotly, ["templates/story.css"], ["templates/story.js"])


def why_ours_differs(chapter: Chapter, by: float = 0.1) -> str:
    """A sentence that says why our Sink_1 is not the paper's. It is empty if all are within `by`, or not compared."""
    table, paper = chapter.table, published(SINK_1)
    if paper not in table.columns or SINK_1 not in table.columns or chapter.scale not in WHY:
        return ""
    pairs = zip(table.numbers(SINK_1), table.numbers(paper), strict=True)
    return WHY[Scale(chapter.scale)] if any(abs(ours - theirs) > by for ours, theirs in pairs) else ""


def small_figure(chapter: Chapter) -> go.Figure | None:
    """The figure that a card shows a small copy of: importances of trained models, or the experiment's own.

    None if there is no such experiment, or if its numbers are older than its module and cannot be drawn.
    """
    table = chapter.table
    is_study = "state" in table.columns or ("paper loss" in table.columns and MODEL in table.columns)
    if is_study and ALPHA_1 in table.columns and not chapter.observes:
        return importances(table)
    try:
        return load_experiment(chapter.name).draw(table) if chapter.name in experiment_names() else None
    except InputError:
        return None


def _grouped(chapters: Sequence[Chapter]) -> list[tuple[str, list[Chapter]]]:
    """The chapters by what they are about, in the order of `GROUPS`. Those of no group come last."""
    waiting, grouped = list(chapters), []
    for title, beginnings in GROUPS.items():
        inside = [c for beginning in beginnings for c in waiting if c.name.startswith(beginning)]
        waiting = [chapter for chapter in waiting if chapter not in inside]
        grouped.append((title, inside))
    return [(title, inside) for title, inside in (*grouped, (OTHERS, waiting)) if inside]


def _card(chapter: Chapter) -> Card:
    outcomes = {verdict.outcome for verdict in chapter.verdicts} - {Outcome.NOT_ASKED}
    tone = _tone(next(iter(outcomes))) if len(outcomes) == 1 else "mixed" if outcomes and not chapter.observes else ""
    return Card(chapter, small_figure(chapter), tone, why_ours_differs(chapter, by=0.5))


def _with_whole_numbers(text: str) -> Markup:
    """The text as HTML in which no line ends inside a number or its interval."""
    return Markup(_NUMBER.sub(lambda found: f"<span>{found[0]}</span>", escape(text, quote=False)))


def _tone(outcome: Outcome) -> str:
    """The class of an outcome's colour."""
    return outcome.value.replace(" ", "-")
