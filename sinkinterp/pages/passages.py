"""Passages of the story, from the numbers of the book: a finding, a few sentences that quote it, and its figure.

`templates/passages.toml` holds the sentences. Every number in them is read from the rows of a chapter. A passage whose
chapter is missing, or whose rows do not show what it says, is left out.
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
from ..report.norms import FIRST_TOKEN, KIND, OTHER_TOKENS
from ..report.readings import short_name
from ..runs.catalogue import Scale
from ..runs.experiment import of_first_model
from ..runs.training_figures import importances
from ..table import NULL, Cell, Table, high_of, low_of
from .chapters import Chapter
from .page import asset

Rows = Mapping[str, Table]  # the rows of the first model of every chapter, by the chapter's name
Told = tuple[Mapping[str, Any], go.Figure]  # what the sentences quote, by name, and the figure
MARK = "natural, id 50257 first"  # text that begins as Whisper's decoder is used to
REPEATED_MARK = "repeated, id 50257 first"
SHOWN_TARGET = 5  # the position, from 1, that p1 is swapped with
MARGIN = 0.05  # by which shares differ where a passage says that they do
FORGETS = "added by forgetting the first token"
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
        with suppress(LookupError):  # a chapter, or a row of it, is not in this book, or does not show it
            numbers, figure = _TELLERS[name](rows)
            title, text = (words[part].strip().format(**numbers) for part in ("title", "text"))
            told.append(Passage(name, title, text, figure, by_name[words["chapter"]]))
    return told


def _of_first_model(table: Table) -> Table:
    """The rows of the first model where models were only measured; all rows where they were trained."""
    is_measured = {col.MODEL, col.SEED} <= set(table.columns) and table.rows[0][col.SEED] is None
    return of_first_model(table, table.title) if is_measured else table


def _ask(shown: bool) -> None:
    """Raises LookupError where the rows do not show what a passage says."""
    if not shown:
        raise LookupError


def _row(table: Table, **equal: Cell) -> Mapping[str, Cell]:
    """The first row with these cells. Raises LookupError where there is none."""
    if not set(equal) <= set(table.columns):
        raise LookupError(f"no column of {table.title!r} is called so: {', '.join(equal)}")
    rows = table.where(**equal).rows
    if not rows:
        raise LookupError(f"no row of {table.title!r} has {equal}")
    return rows[0]


def _number(row: Mapping[str, Cell], column: str) -> float:
    """The number in a cell. Raises LookupError where there is none."""
    if row.get(column) is None:
        raise LookupError(f"no number {column!r}")
    return float(row[column] or 0)


def _numbers(row: Mapping[str, Cell], **columns: str) -> Any:
    """The numbers in some cells, as attributes."""
    return SimpleNamespace(**{name: _number(row, column) for name, column in columns.items()})


def _name(row: Mapping[str, Cell]) -> str:
    """The name of a row's model, for a sentence."""
    model = str(row[col.MODEL])
    return NAMES.get(model, short_name(model))


def _sink(rows: Rows) -> Told:
    """The first token receives much more attention than others."""
    natural, heads = _row(rows["table01_inputs"], input="natural", BOS="none"), rows["figure19_heads"]
    ends = {"low": low_of(col.ALPHA_1), "high": high_of(col.ALPHA_1)}
    found = _numbers(natural, alpha=col.ALPHA_1, null=f"{NULL} {col.ALPHA_1}", rate=col.SINK_1, **ends)
    above = sum(alpha > 0.3 for alpha in heads.numbers(col.ALPHA_1))
    _ask(found.low > found.null + MARGIN)
    return vars(found) | {"name": _name(natural), "above": above, "heads": len(heads)}, heads_overview(heads)


def _words(rows: Rows) -> Told:
    """Random tokens make a sink; a repeated token makes none."""
    table = rows["table01_inputs"].where(BOS="none")
    rates = {name: _number(_row(table, input=name), col.SINK_1) for name in ("natural", "random", "repeated")}
    _ask(rates["random"] > rates["natural"] - MARGIN > rates["repeated"])
    return rates, sweep_figure(replace(table, title="Sink_1 by input"), col.INPUT, (col.SINK_1,))


def _massive(rows: Rows) -> Told:
    """One entry of the first token's residual is massive."""
    natural = rows["massive_activations"].where(input="natural").rows
    largest = max(natural, key=lambda row: _number(row, FIRST_TOKEN))
    found, norms = _numbers(largest, value=FIRST_TOKEN, median=NULL), rows["figure02_norms_angles"]
    kinds = [_row(norms, block=largest[col.BLOCK], tokens=kind) for kind in (FIRST_TOKEN, OTHER_TOKENS)]
    first, others = (_number(row, "residual norm") for row in kinds)
    _ask(found.value >= 100 * found.median)
    figure = sweep_figure(replace(norms, title="Length of the residual"), col.BLOCK, ("residual norm",), KIND)
    figure.update_yaxes(type="log", exponentformat="power", dtick=1)
    where = {"name": _name(largest), "block": largest[col.BLOCK], "dimension": largest["dimension"]}
    return vars(found) | where | {"times": found.value / found.median, "longer": first / others}, figure


def _angle(rows: Rows) -> Told:
    """The first key is short, and at a small angle to the queries."""
    norms = rows["figure02_norms_angles"]
    firsts = [row for row in norms.where(tokens=FIRST_TOKEN).rows if row[col.ALPHA_1] is not None]
    strongest = max(firsts, key=lambda row: _number(row, col.ALPHA_1))
    pair = (strongest, _row(norms, block=strongest[col.BLOCK], tokens=OTHER_TOKENS))
    first, others = (_numbers(row, length="key norm", cosine=col.COSINE) for row in pair)
    _ask(first.length < others.length and first.cosine > others.cosine)
    where = {"layer": strongest[col.BLOCK], "alpha": _number(strongest, col.ALPHA_1)}
    figure = sweep_figure(replace(norms, title="Keys"), col.BLOCK, ("key norm", col.COSINE), KIND)
    return where | {"first": first, "others": others}, figure


def _source(rows: Rows) -> Told:
    """A few neurons write the massive activation, and the keys of most heads read it."""
    table = rows["explained_sinks"]
    path = {str(row[NAME]): _number(row, "number") for row in table.where(what="path").rows}
    names = {"before": "none", "cut": "path: the readers' first keys", "drawn": "control: random vectors as long"}
    cuts = {cut: _row(table, what="path cut", name=name) for cut, name in names.items()}
    alphas = {cut: _number(row, col.ALPHA_1) for cut, row in cuts.items()}
    block = int(path["first block of readers"])
    sinks = [row[col.LAYER] or 0 for row in rows["figure19_heads"].rows if _number(row, col.ALPHA_1) > 0.3]
    _ask(alphas["cut"] < alphas["before"] / 2 < alphas["drawn"])
    numbers = {
        **alphas, "name": _name(table.where(what="head").rows[0]), "writer": _row(table, what="path")[TO],
        "layer": block, "count": int(path["neurons that make most"]), "share": path["share of these neurons"],
        "later": path["later heads"], "earlier": sum(int(layer) < block for layer in sinks), "sinks": len(sinks),
        "loss": _number(cuts["cut"], "change of loss"),
    }  # fmt: skip
    return numbers | {name: path[name] for name in ("written", "dimension", "readers")}, graph_of_rows(table)


def _removal(rows: Rows) -> Told:
    """Without the massive activation the model breaks; with its mean it does not."""
    table = rows["removing_massive"]
    edits = {"before": "none", "zero": "massive entries to zero", "mean": "massive entries to their mean"}
    found = {name: _numbers(_row(table, edit=edit), loss=col.LOSS, sink=col.SINK_1) for name, edit in edits.items()}
    _ask(found["zero"].loss > found["before"].loss + 1 > found["mean"].loss + MARGIN)
    return found | {"name": _name(_row(table, edit="none"))}, sweep_figure(table, col.EDIT, (col.LOSS, col.SINK_1))


def _streaming(rows: Rows) -> Told:
    """A cache that forgets the first token costs perplexity."""
    table, column = rows["streaming"], "perplexity after"
    kept = {"everything": None, "none": 0, "one": 1}
    found = {name: _number(_row(table, sinks=sinks), column) for name, sinks in kept.items()}
    _ask(found["none"] > found["one"] * (1 + MARGIN))
    return found, sweep_figure(table, "cache", (column,))


def _mean(table: Table, model: str, column: str) -> float:
    """The mean over the seeds of a model. Raises LookupError where it has none."""
    values = [float(row[column] or 0) for row in table.where(model=model).rows if row[column] is not None]
    if not values:
        raise LookupError(f"{model} has no {column}")
    return fmean(values)


def _sigmoid(rows: Rows) -> Told:
    """Attention that need not add up to one makes no sink."""
    table, columns = rows["twins"], {"alpha": col.ALPHA_1, "sink": col.SINK_1, "loss": col.LOSS}
    softmax, sigmoid = (
        SimpleNamespace(**{name: _mean(table, model, column) for name, column in columns.items()})
        for model in ("softmax", "sigmoid")
    )
    null = _mean(table, "sigmoid", f"{NULL} {col.ALPHA_1}")
    _ask(softmax.alpha > null > sigmoid.alpha)
    return {"softmax": softmax, "sigmoid": sigmoid, "null": null}, importances(replace(table, title="Three twins"))


def _key_biases(rows: Rows) -> Told:
    """A learned key takes the sink over."""
    table = rows["table04_attention_biases"]
    alphas = {name: _mean(table, name, col.ALPHA_1) for name in ("softmax", "k_bias", "v_bias")}
    slot = _mean(table, "k_bias", col.ALPHA_SLOT)
    _ask(slot > alphas["softmax"] > alphas["k_bias"] + MARGIN)
    return alphas | {"slot": slot}, importances(replace(table, title="Learned keys"))


def _first_position(rows: Rows) -> Told:
    """If positions are learned, the sink goes where p1 goes."""
    table, repeated = (
        rows["table07_position_swap"].where(input=mark, t=SHOWN_TARGET) for mark in (MARK, REPEATED_MARK)
    )
    before, swapped, control = (_row(table, edit=edit) for edit in ("none", "p1 <-> p_t", "p_t <-> p_t+1"))
    copies, copies_swapped = (_row(repeated, edit=edit) for edit in ("none", "p1 <-> p_t"))
    to = SHOWN_TARGET - 1
    rates = {"rate": before, "left": swapped, "control": control, "copies": copies}
    numbers = {name: _number(row, col.SINK_1) for name, row in rates.items()}
    numbers |= {"moved": _number(swapped, col.SINK_T), "copies_moved": _number(copies_swapped, col.SINK_T)}
    is_followed = numbers["moved"] > numbers["rate"] / 2 > numbers["left"]
    _ask(is_followed and numbers["copies_moved"] < numbers["copies"] / 2)
    words = {
        "none": "nothing changed", "p1 <- p_t": f"p1 replaced by position {to}'s", "p1 <-> p_t": f"0 and {to} swapped",
        "p_t <-> p_t+1": f"{to} and {to + 1} swapped",
    }  # fmt: skip
    named = tuple({**row, col.EDIT: words.get(str(row[col.EDIT]), row[col.EDIT])} for row in table.rows)
    note = table.note.replace("t counts from 1; ", "").split("; local/")[0]
    moves = Table("The sink goes where p1 goes", f"{MARK}; {note}", named)
    figure = sweep_figure(moves, col.EDIT, (col.SINK_1, col.SINK_T))
    return numbers | {"name": _name(before), "to": to}, figure


def _moved(rows: Rows) -> Told:
    """As a slot of each head, the first token's mean key and value take the sink over."""
    table = rows["moved_sink"]
    names = {"before": "as it is", "after": "its key and value"}
    told = {when: _row(table, edit=edit) for when, edit in names.items()}
    numbers = {when: _numbers(row, sink=col.SINK_1, forgets=FORGETS) for when, row in told.items()}
    low, high = (-_number(told["after"], end("added loss")) for end in (high_of, low_of))
    _ask(numbers["after"].sink + MARGIN < numbers["before"].sink and low > 0)
    maps = [heads_overview(table.where(edit=f"{edit}, by head")) for edit in names.values()]
    figure = maps[0].add_trace(maps[1].data[0].update(opacity=0, showscale=False))
    return {**numbers, "name": _name(told["before"]), "low": low, "high": high}, figure


_WORDS: Mapping[str, Mapping[str, str]] = tomllib.loads(asset("templates/passages.toml"))
_TELLERS: Mapping[str, Callable[[Rows], Told]] = {
    "sink": _sink, "words": _words, "massive": _massive, "angle": _angle, "source": _source, "removal": _removal,
    "streaming": _streaming, "sigmoid": _sigmoid, "key-biases": _key_biases, "position": _first_position,
    "moved": _moved,
}  # fmt: skip
TOLD_BY = {name: words["chapter"] for name, words in _WORDS.items()}  # the chapter with the numbers of each passage
FINDINGS = ("sink", "position", "key-biases", "sigmoid", "removal")  # what the book opens with
