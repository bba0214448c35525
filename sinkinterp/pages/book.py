"""The book of experiments: its chapters as JSON, a page for each, a front page with every claim, and the story."""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from html import escape
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import plotly.graph_objects as go
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from .. import table as col
from ..checks import InputError, check_count, refusal
from ..files import data_of, path_of, write_file
from ..measurement.maps import attention_map
from ..measurement.measure import measure
from ..plots.theme import sweep_figure
from ..report.explained import graph_of_rows
from ..report.heads import heads_overview, strongest_head
from ..report.readings import short_name
from ..runs.catalogue import Scale, experiment_names
from ..runs.experiment import Outcome, Verdict, counted, load_experiment, of_first_model, standing
from ..runs.training_figures import importances
from ..table import ALPHA_1, MODEL, SINK_1, Cell, Table, published
from .page import TEMPLATES, Section, page, rendered, with_figures

_CHAPTER = {"name", "summary", "verdicts", "provenance"}  # names that other JSON does not have
_NOT_A_CHAPTER = (InputError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
NO_VERDICT = "No verdict: scale smoke only checks the path."
_OBSERVED = (Outcome.SINK, Outcome.NO_SINK)
_BOOK: Mapping[str, Mapping[str, Any]] = data_of("pages/templates/book.toml")


@dataclass(frozen=True)
class Chapter:
    """What the book says of one experiment.

    provenance: how the numbers were made: command, scale, versions, commit, machine, seconds, processor seconds.
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

    @property
    def stem(self) -> str:
        """What its files are called."""
        return stem_of(self.name, self.scale)

    @property
    def heading(self) -> str:
        """Returns what the experiment asks, without hints at options of the command."""
        return "; ".join(part for part in self.summary.split("; ") if "--" not in part).replace("`", "")

    @property
    def title(self) -> str:
        """The result, and the claim that it is of, which is called one unless it holds."""
        is_fact = self.observes or {verdict.outcome for verdict in counted(self.verdicts)} == {Outcome.HOLDS}
        return f"{self.found} {'' if is_fact else 'The claim: '}{self.table.title}"

    @property
    def observes(self) -> bool:
        """Tells if it says what models have, as the atlas does, and judges no claim of the paper."""
        return any(verdict.outcome in _OBSERVED for verdict in self.verdicts)

    @property
    def found(self) -> str:
        """The result in a few words, such as "On text: no." """
        where = _BOOK["where"].get(self.scale, f"At scale {self.scale}")
        counts = Counter(verdict.outcome for verdict in counted(self.verdicts))
        if self.observes:
            return f"{where}: {', '.join(f'{n} {outcome}' for outcome, n in counts.most_common(2))}."
        held, rules = counts[Outcome.HOLDS], counts.total()
        if not rules:
            return NO_VERDICT if not self.verdicts else f"{where}: not asked."
        if held:
            return f"{where}: yes." if held == rules else f"{where}: in part ({held} of {rules} rules hold)."
        return f"{where}: {'no' if counts[Outcome.FAILS] else 'undecided'}."

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready copy: the table's title, note and rows, and beside them verdicts and provenance."""
        own = {"name": self.name, "summary": self.summary, "verdicts": list(map(asdict, self.verdicts))}
        return {**self.table.to_dict(), **own, "provenance": dict(self.provenance)}

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> "Chapter":
        """The inverse of `to_dict`."""
        verdicts = [Verdict(**{**v, "outcome": Outcome(v["outcome"])}) for v in plain["verdicts"]]
        return Chapter(plain["name"], plain["summary"], Table.from_dict(plain), verdicts, plain["provenance"])


def stem_of(name: str, scale: str | None) -> str:
    """The name of an experiment's files. Trainings on text have names of their own, beside those of toys."""
    if scale not in (Scale.TEXT, Scale.GPU, Scale.PAPER) or name not in experiment_names():
        return name
    experiment = load_experiment(name)
    return f"{name}_{scale}" if scale in experiment.scales and scale != experiment.default_scale() else name


def chapters_in(folder: Path) -> list[Chapter]:
    """The chapters of a folder, by name. Raises InputError if it has none, and for a damaged file."""
    folder = path_of(folder, "the folder of a book")
    files = sorted(filter(Path.is_file, folder.glob("*.json")))  # a pipe of that name would never end
    chapters = [chapter for chapter in map(chapter_in, files) if chapter is not None]
    check_count(chapters, f"numbers of experiments in {folder}, which `sinkinterp reproduce NAME` makes")
    return chapters


_OF_EARLIER = {"sealed", "sha256"}  # entries that earlier versions wrote


def chapter_in(file: Path) -> Chapter | None:
    """The chapter of a file; None for other JSON. Raises InputError if the file is damaged."""
    with refusal(f"{file} is damaged", "remove it, or reproduce it again", _NOT_A_CHAPTER):
        plain = json.loads(file.read_text(encoding="utf-8"))
        is_chapter = isinstance(plain, dict) and len(_CHAPTER - plain.keys()) < 2  # one name may be damaged
        if not is_chapter and file.stem not in experiment_names():
            return None
        chapter = Chapter.from_dict(plain)
        if chapter.stem != file.stem or plain.keys() - chapter.to_dict().keys() - _OF_EARLIER:
            raise InputError(f"its name would be {chapter.stem}.json, and it holds {', '.join(plain)}")
        return chapter


INDEX, STORY, PLOTLY = "index.html", "story.html", "plotly.min.js"  # files of a book; its pages share one plotly
_NUMBER = re.compile(r"(?<![\w.])[+-]?\d[\d.,]*(?:e[+-]?\d+)?%?(?: \[[^\]]{1,40}\])?(?: (?:of|to) [+-]?\d[\d.,]*%?)?")


Rows = Mapping[str, Table]  # the rows of the first model of every chapter, by the chapter's name
MARGIN = 0.05  # by which shares differ where a passage says that they do
MAP_MODEL, MAP_TEXT = "sinkinterp/repeats-softmax", "Return the number of items in the list."


@dataclass(frozen=True)
class Passage:
    """A finding in a few words, sentences that quote its numbers, and its figure. chapter: where the numbers stand."""

    name: str
    title: str
    text: str
    figure: go.Figure
    chapter: Chapter


def opening() -> tuple[str, go.Figure]:
    """Returns how much the strongest head of a model that ships gives the first token of a sentence, and its map."""
    report = measure(MAP_MODEL, MAP_TEXT, progress=False)
    layer, head = strongest_head(report)
    figure = attention_map(MAP_MODEL, MAP_TEXT, heads=[(layer, head)])
    figure.layout.updatemenus = ()
    return f"{report.alpha()[0, layer, head]:.0%}", figure


def passages(chapters: Sequence[Chapter], names: Sequence[str] = ()) -> list[Passage]:
    """The passages that the chapters support, all or those named, in the order of the story or of `names`."""
    by_name = {
        chapter.stem: chapter for chapter in chapters if chapter.scale != Scale.SMOKE and len(chapter.table.frame)
    }
    rows = {name: _of_first_model(chapter.table) for name, chapter in by_name.items()}
    told = []
    for name in names or _WORDS:
        words = _WORDS[name]
        with suppress(LookupError):  # a chapter, or a row of it, is not in this book
            numbers = _numbers(words, rows)
            if _value(words["when"], **numbers, margin=MARGIN):
                title, text = (words[part].strip().format(**numbers) for part in ("title", "text"))
                told.append(Passage(name, title, text, _figure(words["figure"], rows), by_name[words["chapter"]]))
    return told


def _of_first_model(table: Table) -> Table:
    """The rows of the first model where models were only measured; all rows where they were trained."""
    is_measured = {col.MODEL, col.SEED} <= set(table.frame) and table.records()[0][col.SEED] is None
    return of_first_model(table, table.title) if is_measured else table


def _numbers(words: Mapping[str, Any], rows: Rows) -> dict[str, Any]:
    """The cells that a passage reads, by row and by name. Raises LookupError for one that is not there."""
    told: dict[str, Any] = {}
    for name, about in words["rows"].items():
        chosen = _chosen(rows[about["of"]], about, told)
        cells = {
            mine: len(chosen) if column == "#" else _cell([row.get(column) for row in chosen])
            for mine, column in about["read"].items()
        }
        told[name] = SimpleNamespace(**cells)
    return told | {name: _value(expression, **told) for name, expression in words.get("more", {}).items()}


def _value(expression: str, **names: Any) -> Any:
    """The value of an expression of a passage, in Jinja2's language."""
    return TEMPLATES.compile_expression(expression)(names)


def _chosen(table: Table, about: Mapping[str, Any], told: Mapping[str, Any]) -> Sequence[Mapping[str, Cell]]:
    """The rows of a passage, as its file says."""
    equal, above, below = (
        {column: _value(value[1:], **told) if str(value)[:1] == "@" else value for column, value in given.items()}
        for given in (about.get(part, {}) for part in ("where", "above", "below"))
    )
    if not set(equal) <= set(table.frame):
        raise LookupError(f"no column of {table.title!r} is called so: {', '.join(equal)}")
    rows = [
        row for row in table.where(**equal).records() if all(float(row[name] or 0) > end for name, end in above.items())
    ]
    rows = [row for row in rows if all(float(row[name] or 0) < end for name, end in below.items())]
    if column := about.get("largest"):
        return sorted((row for row in rows if row[column] is not None), key=lambda row: -float(row[column] or 0))[:1]
    return rows


def _cell(cells: Sequence[Cell]) -> Any:
    """The cell of one row, or the mean over several, such as seeds; the name of a model as sentences call it."""
    known = [cell for cell in cells if cell is not None]
    if not known:
        raise LookupError("there is no such row, or it has no such number")
    if isinstance(known[0], str):
        return _BOOK["names"].get(known[0], short_name(known[0]))
    return known[0] if len(known) == 1 else fmean(map(float, known))


def _figure(about: Mapping[str, Any], rows: Rows) -> go.Figure:
    """The figure that the file of passages describes."""
    table = rows[about["of"]].where(**about.get("where", {}))
    note = _value(about.get("note", "note"), note=table.note)
    table = replace(table, title=about.get("title", table.title), note=note)
    if "kind" in about:
        return _KINDS[about["kind"]](table)
    x, words = about["x"], about.get("words", {})
    named = table.with_rows({**row, x: words.get(row[x], row[x])} for row in table.records())
    return sweep_figure(named, x, about["quantities"], about.get("by")).update_yaxes(about.get("axis", {}))


def _before_and_after(table: Table) -> go.Figure:
    """Two maps of heads on each other, between which the page moves; the second is transparent."""
    maps = [heads_overview(table.where(edit=f"{edit}, by head")) for edit in ("as it is", "its key and value")]
    return maps[0].add_trace(maps[1].data[0].update(opacity=0, showscale=False))


_KINDS: Mapping[str, Callable[[Table], go.Figure]] = {
    "heads": heads_overview,
    "graph": graph_of_rows,
    "importances": importances,
    "before and after": _before_and_after,
}
_WORDS: Mapping[str, Mapping[str, Any]] = data_of("pages/templates/passages.toml")
TOLD_BY = {name: words["chapter"] for name, words in _WORDS.items()}  # the chapter with the numbers of each passage
FINDINGS = ("sink", "position", "key-biases", "sigmoid", "removal")  # what the book opens with


def write_chapter(folder: Path, chapter: Chapter, digest: Table, figure: go.Figure) -> list[Path]:
    """Writes the files of a chapter, and of the front page that counts it, to the folder of the book."""
    numbers, html = write_numbers(folder, chapter), write_page(folder, chapter, digest, figure)
    return [numbers, html, *write_front_pages(folder)]


def write_numbers(folder: Path, chapter: Chapter) -> Path:
    """Writes the numbers that the book keeps of a chapter."""
    numbers = folder / f"{chapter.stem}.json"
    write_file(numbers, chapter.to_dict())
    return numbers


def write_page(folder: Path, chapter: Chapter, digest: Table, figure: go.Figure, finding: str = "") -> Path:
    """Writes the page of a chapter, with what it found if that is written, and beside it the plotly of all pages."""
    html, library = folder / f"{chapter.stem}.html", folder / PLOTLY
    check_plotly(folder)
    if not library.is_file():
        write_file(library, get_plotlyjs())
    write_file(html, chapter_page(chapter, digest, figure, finding))
    return html


def check_plotly(folder: Path) -> None:
    """Raises InputError unless the plotly of a book, which its pages run, is that of this installation, or absent."""
    library = folder / PLOTLY
    if library.is_file() and library.read_bytes() != get_plotlyjs().encode():
        raise InputError(f"{library} is not the one of this plotly, and the pages would run it; remove it")


def write_front_pages(folder: Path) -> list[Path]:
    """Writes the front page of a book, and the story if the book has numbers for it."""
    chapters, folder = chapters_in(folder), Path(folder)
    check_plotly(folder)
    has_story = bool(passages(chapters))
    pages = {folder / INDEX: front_page(chapters, PLOTLY, STORY if has_story else None)}
    if has_story:
        pages[folder / STORY] = story_page(chapters, PLOTLY, INDEX)
    for file, html in pages.items():
        write_file(file, html)
    return list(pages)


def files_of(folder: Path, stems: Sequence[str]) -> list[Path]:
    """The files that these chapters add to a book; in a folder without chapters also its front pages."""
    front = [] if any(folder.glob("*.json")) else [folder / INDEX, folder / STORY]
    return [*front, *(folder / f"{stem}.{ending}" for stem in stems for ending in ("json", "html"))]


def chapter_page(chapter: Chapter, digest: Table, figure: go.Figure, finding: str = "") -> str:
    """The page of one experiment: its result, figure, verdicts, digest, all rows, and how the numbers were made.

    finding: a written sentence that says what the rows show.
    """
    verdicts = verdict_table(chapter)
    rule = "A rule says which numbers support the claim; the module of the experiment holds it."
    beside = _BOOK["beside"].get(chapter.scale, "") if published(SINK_1) in chapter.table.frame else ""
    words = " ".join(filter(None, (rule, beside, why_ours_differs(chapter))))
    about = words if chapter.verdicts else chapter.found
    made = Table.of("", "", tuple({"what": name, "value": str(value)} for name, value in chapter.provenance.items()))
    sections = [
        Section("Figure", "", [figure]),
        Section(verdicts.title, about, tables=[verdicts]),
        Section("In short", digest.note, tables=[digest]),
        *([] if len(digest.frame) == len(chapter.table.frame) else [Section("All rows", "", tables=[chapter.table])]),
        Section("How these numbers were made", f"Make them again: {chapter.provenance.get('command')}", tables=[made]),
    ]
    asks = chapter.heading if chapter.heading.endswith(("?", ".")) else f"{chapter.heading}."
    lead = " ".join(filter(None, (finding, asks)))
    return page(chapter.title, lead, sections, PLOTLY)


def verdict_table(chapter: Chapter) -> Table:
    """A row per rule; the title says how many hold."""
    rows = tuple(
        {"rule": v.claim, "verdict": f"{'set-up: ' * v.is_setup}{v.outcome.value}", "because": v.reason}
        for v in chapter.verdicts
    )
    held = standing(chapter.verdicts)
    return Table.of(f"Verdicts: {held}" if held else "Verdicts", "" if rows else chapter.found, rows)


def front_page(chapters: Sequence[Chapter], plotly: str | None = None, story: str | None = None) -> str:
    """Findings and claims as a page with a search and filters. All text from data is escaped.

    plotly: the path of a file with plotly.js, seen from the page. story: the path of the page that tells the findings.
    """
    judged = [chapter for chapter in chapters if not chapter.observes]
    counts = Counter(verdict.outcome for chapter in judged for verdict in chapter.verdicts if not verdict.is_setup)
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
    return with_figures("What is true of attention sinks", body, plotly, ["templates/book.css"], ["templates/book.js"])


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
    if paper not in table.frame or SINK_1 not in table.frame or chapter.scale not in _BOOK["why"]:
        return ""
    pairs = zip(table.numbers(SINK_1), table.numbers(paper), strict=True)
    return _BOOK["why"][chapter.scale] if any(abs(ours - theirs) > by for ours, theirs in pairs) else ""


def small_figure(chapter: Chapter) -> go.Figure | None:
    """The figure that a card shows a small copy of: importances of trained models, or the experiment's own.

    None if there is no such experiment, or if its numbers are older than its module and cannot be drawn.
    """
    table = chapter.table
    is_study = "state" in table.frame or ("paper loss" in table.frame and MODEL in table.frame)
    if is_study and ALPHA_1 in table.frame and not chapter.observes:
        return importances(table)
    try:
        return load_experiment(chapter.name).draw(table) if chapter.name in experiment_names() else None
    except (InputError, KeyError):  # a column that the rows do not have
        return None


def _grouped(chapters: Sequence[Chapter]) -> list[tuple[str, list[Chapter]]]:
    """The chapters by what they are about, each in the first group that it fits."""
    waiting, grouped = list(chapters), []
    for title, beginnings in _BOOK["groups"].items():
        inside = [c for beginning in beginnings for c in waiting if c.name.startswith(beginning)]
        waiting = [chapter for chapter in waiting if chapter not in inside]
        grouped.append((title, inside))
    return [(title, inside) for title, inside in grouped if inside]


def _card(chapter: Chapter) -> dict[str, Any]:
    """A chapter on the front page: its figure, if it can be drawn, and the colour of its verdict."""
    outcomes = {verdict.outcome for verdict in counted(chapter.verdicts)}
    tone = _tone(next(iter(outcomes))) if len(outcomes) == 1 else "mixed" if outcomes and not chapter.observes else ""
    why = why_ours_differs(chapter, by=0.5)
    return {"chapter": chapter, "figure": small_figure(chapter), "tone": tone, "why": why}


def _with_whole_numbers(text: str) -> Markup:
    """The text as HTML in which no line ends inside a number or its interval."""
    return Markup(_NUMBER.sub(lambda found: f"<span>{found[0]}</span>", escape(text, quote=False)))


def _tone(outcome: Outcome) -> str:
    """The class of an outcome's colour."""
    return outcome.value.replace(" ", "-")
