"""Passages of the story, from the numbers of the book: a finding, a few sentences that quote it, and its figure.

`templates/passages.toml` holds the sentences, says in which rows and columns their numbers are, and what is drawn. A
passage whose chapter is missing, or whose rows do not show what it says, is left out.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import plotly.graph_objects as go

from ..measurement.maps import attention_map
from ..measurement.measure import measure
from ..plots.series import sweep_figure
from ..report import columns as col
from ..report.explained_graph import NAME, TO, graph_of_rows
from ..report.heads import heads_overview, strongest_head
from ..report.readings import short_name
from ..runs.catalogue import Scale
from ..runs.experiment import of_first_model
from ..runs.training_figures import importances
from ..table import Cell, Table
from .chapters import Chapter
from .page import asset

Rows = Mapping[str, Table]  # the rows of the first model of every chapter, by the chapter's name
Numbers = Any  # what the sentences quote, by name
MARK = "natural, id 50257 first"  # text that begins as Whisper's decoder is used to
SHOWN_TARGET = 5  # the position, from 1, that p1 is swapped with
MARGIN = 0.05  # by which shares differ where a passage says that they do
MAP_MODEL, MAP_TEXT = "sinkinterp/repeats-softmax", "Return the number of items in the list."
NAMES = {
    "local/smollm2-135m-instruct": "SmolLM2-135M",
    "local/whisper-tiny.en, encoder silence": "Whisper tiny.en (its decoder, while it hears silence)",
}


@dataclass(frozen=True)
class Passage:
    """A finding in a few words, sentences that quote its numbers, and its figure. chapter: where the numbers stand."""

    name: str
    title: str
    text: str
    figure: go.Figure
    chapter: Chapter


def opening() -> tuple[str, go.Figure]:
    """Returns what a head does with the words of a sentence, and its map, from a model that ships with the package."""
    report = measure(MAP_MODEL, MAP_TEXT, progress=False)
    layer, head = strongest_head(report)
    figure = attention_map(MAP_MODEL, MAP_TEXT, heads=[(layer, head)])
    figure.layout.updatemenus = ()
    text = (
        "Here is one attention head of a small model that ships with sinkinterp, while it reads a sentence. Each row "
        "is a token that looks back, each column a token that it looks at. The bar says what the colours mean. The "
        f"first column stands out: the first token receives {report.alpha()[0, layer, head]:.0%} of all attention."
    )
    return text, figure


def passages(chapters: Sequence[Chapter], names: Sequence[str] = ()) -> list[Passage]:
    """The passages that the chapters support, all or those named, in the order of the story or of `names`."""
    by_name = {chapter.stem: chapter for chapter in chapters if chapter.scale != Scale.SMOKE and chapter.table.rows}
    rows = {name: _of_first_model(chapter.table) for name, chapter in by_name.items()}
    told = []
    for name in names or _WORDS:
        words = _WORDS[name]
        with suppress(LookupError):  # a chapter, or a row of it, is not in this book
            teller, numbers = _TELLERS[name], _numbers(words, rows)
            numbers.__dict__.update(teller.more(rows, numbers))
            if teller.shows(numbers):
                title, text = (words[part].strip().format(**vars(numbers)) for part in ("title", "text"))
                figure = teller.figure(name, rows)
                told.append(Passage(name, title, text, figure, by_name[words["chapter"]]))
    return told


def _of_first_model(table: Table) -> Table:
    """The rows of the first model where models were only measured; all rows where they were trained."""
    is_measured = {col.MODEL, col.SEED} <= set(table.columns) and table.rows[0][col.SEED] is None
    return of_first_model(table, table.title) if is_measured else table


def _numbers(words: Mapping[str, Any], rows: Rows) -> Numbers:
    """The cells that a passage reads, by row and by name. Raises LookupError for one that is not there."""
    told: dict[str, Any] = {}
    for name, about in words.get("rows", {}).items():
        chosen = _chosen(rows[about["of"]], about, told)
        cells = {mine: _cell([row.get(column) for row in chosen]) for mine, column in about["read"].items()}
        told[name] = SimpleNamespace(**cells)
    return SimpleNamespace(**told)


def _chosen(table: Table, about: Mapping[str, Any], told: Mapping[str, Any]) -> Sequence[Mapping[str, Cell]]:
    """The rows with the cells of `where`, in which "@first.layer" is a number read before; of these the `largest`."""
    equal = {column: _said(told, value) for column, value in about.get("where", {}).items()}
    if not set(equal) <= set(table.columns):
        raise LookupError(f"no column of {table.title!r} is called so: {', '.join(equal)}")
    rows = table.where(**equal).rows
    if column := about.get("largest"):
        return sorted((row for row in rows if row[column] is not None), key=lambda row: -float(row[column] or 0))[:1]
    return rows


def _said(told: Mapping[str, Any], value: Any) -> Any:
    if not str(value).startswith("@"):
        return value
    row, _, name = value[1:].partition(".")
    return getattr(told[row], name)


def _cell(cells: Sequence[Cell]) -> Any:
    """The cell of one row, or the mean over several, such as seeds; the name of a model as sentences call it."""
    known = [cell for cell in cells if cell is not None]
    if not known:
        raise LookupError("there is no such row, or it has no such number")
    if isinstance(known[0], str):
        return NAMES.get(known[0], short_name(known[0]))
    return known[0] if len(known) == 1 else fmean(map(float, known))


def _drawn(name: str, rows: Rows) -> go.Figure:
    """The figure that the file of passages describes."""
    about = _WORDS[name]["figure"]
    table = rows[about["of"]].where(**about.get("where", {}))
    titled = replace(table, title=about.get("title", table.title))
    return sweep_figure(titled, about["x"], about["quantities"], about.get("by"))


def _heads_with_a_sink(rows: Rows, numbers: Numbers) -> dict[str, Any]:
    heads = rows["figure19_heads"]
    return {"above": sum(alpha > 0.3 for alpha in heads.numbers(col.ALPHA_1)), "heads": len(heads)}


def _path(rows: Rows, numbers: Numbers) -> dict[str, Any]:
    """The path of the massive activation, which its chapter tells in rows of a name and a number."""
    path = {str(row[NAME]): float(row["number"] or 0) for row in rows["explained_sinks"].where(what="path").rows}
    block = int(path["first block of readers"])
    sinks = [int(row[col.LAYER] or 0) for row in rows["figure19_heads"].rows if float(row[col.ALPHA_1] or 0) > 0.3]
    counts: dict[str, Any] = {"layer": block, "earlier": sum(layer < block for layer in sinks), "sinks": len(sinks)}
    counts |= {"count": int(path["neurons that make most"]), "share": path["share of these neurons"]}
    counts |= {"writer": str(next(row[TO] for row in rows["explained_sinks"].where(what="path").rows))}
    return counts | {name: path[name] for name in ("written", "dimension", "readers")} | {"later": path["later heads"]}


def _swapped_positions(name: str, rows: Rows) -> go.Figure:
    """The rates under each edit of the positions 0 and `SHOWN_TARGET`, with the edits in words."""
    to, table = SHOWN_TARGET - 1, rows["table07_position_swap"].where(input=MARK, t=SHOWN_TARGET)
    words = {
        "none": "nothing changed", "p1 <- p_t": f"p1 replaced by position {to}'s", "p1 <-> p_t": f"0 and {to} swapped",
        "p_t <-> p_t+1": f"{to} and {to + 1} swapped",
    }  # fmt: skip
    named = tuple({**row, col.EDIT: words.get(str(row[col.EDIT]), row[col.EDIT])} for row in table.rows)
    note = table.note.replace("t counts from 1; ", "").split("; local/")[0]
    moves = Table("The sink goes where p1 goes", f"{MARK}; {note}", named)
    return sweep_figure(moves, col.EDIT, (col.SINK_1, col.SINK_T))


def _before_and_after(name: str, rows: Rows) -> go.Figure:
    """Two maps of heads on each other, between which the page moves; the second is transparent."""
    table = rows["moved_sink"]
    maps = [heads_overview(table.where(edit=f"{edit}, by head")) for edit in ("as it is", "its key and value")]
    return maps[0].add_trace(maps[1].data[0].update(opacity=0, showscale=False))


@dataclass(frozen=True)
class Teller:
    """When a passage is told, its figure, and what else it quotes."""

    shows: Callable[[Numbers], bool]
    figure: Callable[[str, Rows], go.Figure] = _drawn
    more: Callable[[Rows, Numbers], Mapping[str, Any]] = lambda rows, numbers: {}


_WORDS: Mapping[str, Mapping[str, Any]] = tomllib.loads(asset("templates/passages.toml"))
_TELLERS: Mapping[str, Teller] = {
    "sink": Teller(
        lambda n: n.natural.low > n.natural.null + MARGIN,
        lambda name, rows: heads_overview(rows["figure19_heads"]),
        _heads_with_a_sink,
    ),
    "words": Teller(lambda n: n.random.sink > n.natural.sink - MARGIN > n.repeated.sink),
    "massive": Teller(
        lambda n: n.times >= 100,
        lambda name, rows: _drawn(name, rows).update_yaxes(type="log", exponentformat="power", dtick=1),
        lambda rows, n: {"times": n.largest.value / n.largest.median, "longer": n.first.norm / n.others.norm},
    ),
    "angle": Teller(lambda n: n.first.length < n.others.length and n.first.cosine > n.others.cosine),
    "source": Teller(
        lambda n: n.cut.alpha < n.before.alpha / 2 < n.drawn.alpha,
        lambda name, rows: graph_of_rows(rows["explained_sinks"]),
        _path,
    ),
    "removal": Teller(lambda n: n.zero.loss > n.before.loss + 1 > n.mean.loss + MARGIN),
    "streaming": Teller(lambda n: n.none.perplexity > n.one.perplexity * (1 + MARGIN)),
    "sigmoid": Teller(
        lambda n: n.softmax.alpha > n.sigmoid.null > n.sigmoid.alpha,
        lambda name, rows: importances(replace(rows["twins"], title="Three twins")),
    ),
    "key-biases": Teller(
        lambda n: n.k_bias.slot > n.softmax.alpha > n.k_bias.alpha + MARGIN,
        lambda name, rows: importances(replace(rows["table04_attention_biases"], title="Learned keys")),
    ),
    "position": Teller(
        lambda n: n.swapped.there > n.before.sink / 2 > n.swapped.sink and n.moved.there < n.copies.sink / 2,
        _swapped_positions,
        lambda rows, n: {"to": SHOWN_TARGET - 1},
    ),
    "moved": Teller(
        lambda n: n.after.sink + MARGIN < n.before.sink and n.low > 0,
        _before_and_after,
        lambda rows, n: {"low": -n.after.most, "high": -n.after.least},
    ),
}
TOLD_BY = {name: words["chapter"] for name, words in _WORDS.items()}  # the chapter with the numbers of each passage
FINDINGS = ("sink", "position", "key-biases", "sigmoid", "removal")  # what the book opens with
