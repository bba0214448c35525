"""The front page of the book, with every claim, and the story: passages whose numbers are cells of the chapters."""

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import plotly.graph_objects as go
from markupsafe import Markup

from sinkinterp import table as col
from sinkinterp._experiments import experiment_names
from sinkinterp.checks import InputError
from sinkinterp.data.choices import Scale
from sinkinterp.files import write_file
from sinkinterp.measurement.maps import attention_map
from sinkinterp.measurement.measure import measure
from sinkinterp.pages.page import TEMPLATES, rendered, with_figures
from sinkinterp.plots.theme import sweep_figure
from sinkinterp.report.heads import heads_overview
from sinkinterp.report.readings import short_name
from sinkinterp.runs.experiment import Outcome, counted, load_experiment
from sinkinterp.table import ALPHA_1, MODEL, Cell, Table

from ..shared.cases import of_first_model
from ..shared.explanations import graph_of_rows
from ..shared.figures import importances
from .cards import thumbnail
from .cells import with_names
from .chapter import (
    INDEX,
    PLOTLY,
    STORY,
    Chapter,
    chapters_in,
    check_plotly,
    why_ours_differs,
    write_numbers,
    write_page,
)

_HERE = Path(__file__).parent / "templates"
_PAGES: Mapping[str, Mapping[str, Any]] = tomllib.loads((_HERE / "front.toml").read_text(encoding="utf-8"))
_NUMBER = re.compile(r"(?<![\w.])[+-]?\d[\d.,]*(?:e[+-]?\d+)?%?(?: \[[^\]]{1,40}\])?(?: (?:of|to) [+-]?\d[\d.,]*%?)?")


Rows = Mapping[str, Table]  # the rows of the first model of every chapter, by the chapter's name
PALE = 0.45  # opacity
MARGIN = 0.05  # by which shares differ where a passage says that they do
MAP_MODEL, MAP_TEXT = "sinkinterp/repeats-softmax", "Return the number of items in the list."


@dataclass(frozen=True)
class Passage:
    """A finding in a few words, sentences that quote its numbers, and its figure.

    chapter: the one that holds the numbers.
    """

    name: str
    title: str
    text: str
    figure: go.Figure
    chapter: Chapter


def opening() -> tuple[str, go.Figure]:
    """Returns how much the strongest head of a model that ships gives the first token of a sentence, and its map."""
    report = measure(MAP_MODEL, MAP_TEXT, progress=False)
    row = report.heads(top=1).records()[0]
    layer, head = row[col.LAYER], row[col.HEAD]
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
        return _PAGES["names"].get(known[0], short_name(known[0]))
    return known[0] if len(known) == 1 else fmean(map(float, known))


def _figure(about: Mapping[str, Any], rows: Rows) -> go.Figure:
    """The figure that the file of passages describes."""
    table = rows[about["of"]].where(**about.get("where", {}))
    note = _value(about.get("note", "note"), note=table.note)
    table = replace(table, title=about.get("title", table.title), note=note)
    if "kind" in about:
        return _KINDS[about["kind"]](table)
    x, words = about["x"], about.get("words", {})
    if words:
        texts = words.items()
        table = table.with_rows({**row, x: text} for cell, text in texts for row in table.where(**{x: cell}).records())
    return sweep_figure(table, x, about["quantities"], about.get("by")).update_yaxes(about.get("axis", {}))


def _before_and_after(table: Table) -> go.Figure:
    """Two maps of heads on each other, between which the page moves; the second is transparent."""
    maps = [heads_overview(table.where(edit=f"{edit}, by head")) for edit in ("as it is", "its key and value")]
    return maps[0].add_trace(maps[1].data[0].update(opacity=0, showscale=False))


def _over_pale(table: Table) -> go.Figure:
    """The map of heads over a pale copy, which the page's slider uncovers."""
    drawn, pale = heads_overview(table), heads_overview(table)
    pale.update_traces(opacity=PALE, showscale=False).update_xaxes(showgrid=False).update_yaxes(showgrid=False)
    return pale.add_trace(drawn.data[0].update(hoverongaps=False))


_KINDS: Mapping[str, Callable[[Table], go.Figure]] = {
    "heads": _over_pale,
    "graph": graph_of_rows,
    "importances": importances,
    "before and after": _before_and_after,
}
_WORDS: Mapping[str, Mapping[str, Any]] = tomllib.loads((_HERE / "passages.toml").read_text(encoding="utf-8"))
TOLD_BY = {name: words["chapter"] for name, words in _WORDS.items()}  # the chapter with the numbers of each passage
FINDINGS = ("sink", "position", "key-biases", "sigmoid", "removal")  # what the book opens with


def write_chapter(folder: Path, chapter: Chapter, digest: Table, figure: go.Figure) -> list[Path]:
    """Writes the files of a chapter, and of the front page that counts it, to the folder of the book."""
    numbers, html = write_numbers(folder, chapter), write_page(folder, chapter, digest, figure)
    return [numbers, html, *write_front_pages(folder)]


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


def front_page(chapters: Sequence[Chapter], plotly: str | None = None, story: str | None = None) -> str:
    """Findings and claims as a page with a search and filters. All text from data is escaped.

    plotly: the path of a file with plotly.js, seen from the page. story: the path of the page that tells the findings.
    """
    judged = [chapter for chapter in chapters if not chapter.observes]
    counts = Counter(verdict.outcome for chapter in judged for verdict in chapter.verdicts if not verdict.is_setup)
    body = rendered(
        _HERE / "book.html",
        story=story,
        findings=[
            (told, thumbnail(told.figure), _with_whole_numbers(told.text)) for told in passages(chapters, FINDINGS)
        ],
        claims=sum(bool(chapter.verdicts) for chapter in judged),
        rules=sum(counts.values()),
        counts=[(outcome, _tone(outcome), counts[outcome]) for outcome in Outcome if counts[outcome]],
        scales=Counter(chapter.scale for chapter in chapters),
        groups=[(title, list(map(_card, inside))) for title, inside in _grouped(chapters)],
        tone=_tone,
        whole=_with_whole_numbers,
    )
    return with_figures("What is true of attention sinks", body, plotly, [_HERE / "book.css"], [_HERE / "book.js"])


def story_page(chapters: Sequence[Chapter], plotly: str | None = None, book: str | None = None) -> str:
    """The story as HTML text. Raises InputError unless the chapters support a passage.

    plotly: the path of a file with plotly.js. Without it the page holds plotly.js itself. book: the path of the book's
    front page, in the folder of its chapters. Without it there are no links.
    """
    told = passages(chapters)
    if not told:
        raise InputError(f"these numbers tell no story; it needs some of {', '.join(sorted(TOLD_BY.values()))}")
    title = "Where attention goes when it has nowhere to go"
    body = rendered(_HERE / "story.html", title=title, told=told, opening=opening(), book=book)
    return with_figures(title, body, plotly, [_HERE / "story.css"], [_HERE / "story.js"])


def figure_of(chapter: Chapter) -> go.Figure | None:
    """The figure that a card shows a small copy of: importances of trained models, or the experiment's own.

    None if there is no such experiment, or if its numbers are older than its module and cannot be drawn.
    """
    table = with_names(chapter.table)
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
    for title, beginnings in _PAGES["groups"].items():
        inside = [c for beginning in beginnings for c in waiting if c.name.startswith(beginning)]
        waiting = [chapter for chapter in waiting if chapter not in inside]
        grouped.append((title, inside))
    return [(title, inside) for title, inside in grouped if inside]


def _card(chapter: Chapter) -> dict[str, Any]:
    """A chapter on the front page: its figure, if it can be drawn, and the colour of its verdict."""
    outcomes = {verdict.outcome for verdict in counted(chapter.verdicts)}
    tone = _tone(next(iter(outcomes))) if len(outcomes) == 1 else "mixed" if outcomes and not chapter.observes else ""
    why = why_ours_differs(chapter, by=0.5)
    figure = figure_of(chapter)
    return {"chapter": chapter, "figure": None if figure is None else thumbnail(figure), "tone": tone, "why": why}


def _with_whole_numbers(text: str) -> Markup:
    """The text as HTML in which no line ends inside a number or its interval."""
    return Markup(_NUMBER.sub(lambda found: f"<span>{found[0]}</span>", escape(text, quote=False)))


def _tone(outcome: Outcome) -> str:
    """The class of an outcome's colour."""
    return outcome.value.replace(" ", "-")
