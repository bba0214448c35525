"""What the numbers of the book tell, passage by passage: a finding, a few sentences that quote it, and its figure.

Every number in a sentence is read from the rows of a chapter. A passage whose chapter is missing, or whose rows do not
show what it says, is left out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import plotly.graph_objects as go

from ..measurement.maps import attention_map
from ..measurement.measure import measure
from ..plots.series import sweep_figure
from ..report.columns import (
    ALPHA_1,
    ALPHA_SLOT,
    BLOCK,
    COSINE,
    EDIT,
    INPUT,
    LAYER,
    LOSS,
    MODEL,
    SEED,
    SINK_1,
    SINK_T,
)
from ..report.explained_graph import NAME, TO, graph_of_rows
from ..report.heads import heads_overview, strongest_head
from ..report.norms import KIND
from ..report.readings import short_name
from ..runs.catalogue import Scale
from ..runs.experiment import of_first_model
from ..runs.training_figures import importances
from ..table import NULL, Cell, Table, high_of, low_of
from .chapters import Chapter

Rows = Mapping[str, Table]  # the rows of the first model of every chapter, by the chapter's name
MARK = "natural, id 50257 first"  # text that begins as Whisper's decoder is used to
REPEATED_MARK = "repeated, id 50257 first"
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


@dataclass(frozen=True)
class _Told:
    """What a passage says; None of the numbers in it was typed."""

    title: str
    text: str
    figure: go.Figure


def opening() -> tuple[str, go.Figure]:
    """Returns what a head does with the words of a sentence, and its map, from a model that ships with the package."""
    report = measure(MAP_MODEL, MAP_TEXT, progress=False)
    layer, head = strongest_head(report)
    figure = attention_map(MAP_MODEL, MAP_TEXT, heads=[(layer, head)])
    figure.layout.updatemenus = ()
    text = (
        "Here is one attention head of a small model that ships with sinkinterp, while it reads a sentence. Each row "
        "is a token that looks back, each column a token that it looks at. A dark square is much attention. The first "
        f"column is dark: the first token receives {report.alpha()[0, layer, head]:.0%} of all attention."
    )
    return text, figure


def passages(chapters: Sequence[Chapter], names: Sequence[str] = ()) -> list[Passage]:
    """The passages that the chapters support, all or those named, in the order of the story or of `names`."""
    by_name = {chapter.stem: chapter for chapter in chapters if chapter.scale != Scale.SMOKE and chapter.table.rows}
    rows = {name: _of_first_model(chapter.table) for name, chapter in by_name.items()}
    told = []
    for name in names or _TELLERS:
        of_chapter, tell = _TELLERS[name]
        try:
            passage = tell(rows)
        except LookupError:  # a chapter, or a row of it, is not in this book
            continue
        if passage is not None:
            told.append(Passage(name, passage.title, passage.text, passage.figure, by_name[of_chapter]))
    return told


def _of_first_model(table: Table) -> Table:
    """The rows of the first model where models were only measured; all rows where they were trained."""
    is_measured = {MODEL, SEED} <= set(table.columns) and table.rows[0][SEED] is None
    return of_first_model(table, table.title) if is_measured else table


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


def _name(row: Mapping[str, Cell]) -> str:
    """The name of a row's model, for a sentence."""
    model = str(row[MODEL])
    return NAMES.get(model, short_name(model))


def _sink(rows: Rows) -> _Told | None:
    """The first token receives much more attention than others."""
    natural = _row(rows["table01_inputs"], input="natural", BOS="none")
    alpha, null, rate = (_number(natural, name) for name in (ALPHA_1, f"{NULL} {ALPHA_1}", SINK_1))
    low, high = _number(natural, low_of(ALPHA_1)), _number(natural, high_of(ALPHA_1))
    if low <= null + MARGIN:
        return None
    heads = rows["figure19_heads"]
    above = sum(alpha > 0.3 for alpha in heads.numbers(ALPHA_1))
    text = (
        f"A language model reads a text token by token, and every token looks back at those before it. In "
        f"{_name(natural)} the first token receives {alpha:.1%} [{low:.1%}, {high:.1%}] of this attention, whatever it "
        f"says; spread evenly, it would be {null:.1%}. {above} of its {len(heads.rows)} heads give it more than 0.3 of "
        f"theirs, mean over texts (counted text by text, {rate:.1%} do: Sink_1). Each square of the map is a head; its "
        "colour says how much it looks at the first token."
    )
    return _Told(f"A sink: {alpha:.0%} of all attention goes to the first token", text, heads_overview(heads))


def _words(rows: Rows) -> _Told | None:
    """Random tokens make a sink; a repeated token makes none."""
    table = rows["table01_inputs"].where(BOS="none")
    natural, drawn, repeated = (_number(_row(table, input=name), SINK_1) for name in ("natural", "random", "repeated"))
    if not (drawn > natural - MARGIN > repeated):
        return None
    text = (
        f"Random tokens make as much of a sink (Sink_1 {drawn:.1%}) as text does ({natural:.1%}). One token that is "
        f"repeated makes none ({repeated:.1%}): this model only sees distances between tokens, so nothing marks one of "
        "the copies as the first."
    )
    figure = sweep_figure(replace(table, title="Sink_1 by input"), INPUT, (SINK_1,))
    return _Told("It is not about the words", text, figure)


def _massive(rows: Rows) -> _Told | None:
    """One entry of the first token's residual is massive."""
    largest = max(rows["massive_activations"].where(input="natural").rows, key=lambda row: _number(row, "first token"))
    value, median, block = _number(largest, "first token"), _number(largest, NULL), largest[BLOCK]
    norms = rows["figure02_norms_angles"]
    first, others = (_number(_row(norms, block=block, tokens=kind), "residual norm") for kind in _KINDS)
    if value < 100 * median:
        return None
    text = (
        f"After {block} layers, the vector that {_name(largest)} keeps for the first token has one entry of "
        f"{value:,.0f}, in dimension {largest['dimension']}. The median entry is {median:.1f}. This massive activation "
        f"makes the vector {first / others:,.0f} times as long as those of other tokens."
    )
    figure = sweep_figure(replace(norms, title="Length of the residual"), BLOCK, ("residual norm",), KIND)
    figure.update_yaxes(type="log", exponentformat="power", dtick=1)
    return _Told(f"One number is {value / median:,.0f} times the usual size", text, figure)


_KINDS = ("first token", "other tokens")


def _angle(rows: Rows) -> _Told | None:
    """The first key is short, and at a small angle to the queries."""
    norms = rows["figure02_norms_angles"]
    firsts = [row for row in norms.where(tokens=_KINDS[0]).rows if row[ALPHA_1] is not None]
    first = max(firsts, key=lambda row: _number(row, ALPHA_1))
    other = _row(norms, block=first[BLOCK], tokens=_KINDS[1])
    lengths, cosines = ([_number(row, name) for row in (first, other)] for name in ("key norm", COSINE))
    if not (lengths[0] < lengths[1] and cosines[0] > cosines[1]):
        return None
    text = (
        f"A token is looked at where its key is long, or where it points in the direction of the queries. In layer "
        f"{first[BLOCK]}, which gives the first token {_number(first, ALPHA_1):.0%} of its attention, the first key is "
        f"short: {lengths[0]:.1f}, where the others have {lengths[1]:.1f}. It wins by its direction: its cosine with "
        f"the queries is {cosines[0]:.2f}, that of the others {cosines[1]:.2f}."
    )
    figure = sweep_figure(replace(norms, title="Keys"), BLOCK, ("key norm", COSINE), KIND)
    return _Told("Its key is short, and points the right way", text, figure)


def _source(rows: Rows) -> _Told | None:
    """A few neurons write the massive activation, and the keys of most heads read it."""
    table = rows["explained_sinks"]
    heads = table.where(what="head").rows
    path = {str(row[NAME]): _number(row, "number") for row in table.where(what="path").rows}
    before, cut, drawn = (
        _row(table, what="path cut", name=name)
        for name in ("none", "path: the readers' first keys", "control: random vectors as long")
    )
    alphas = [_number(row, ALPHA_1) for row in (before, cut, drawn)]
    block = int(path["first block of readers"])
    sinks = [row[LAYER] or 0 for row in rows["figure19_heads"].rows if _number(row, ALPHA_1) > 0.3]
    earlier = sum(int(layer) < block for layer in sinks)
    if not alphas[1] < alphas[0] / 2 < alphas[2]:
        return None
    writer, count = str(_row(table, what="path")[TO]), int(path["neurons that make most"])
    text = (
        f"In {_name(heads[0])}, {writer} writes {path['written']:,.0f} into dimension {path['dimension']:.0f} at the "
        f"first token, and {count} of its neurons make {path['share of these neurons']:.0%} of that. From layer "
        f"{block} on the keys of {path['readers']:.0f} of {path['later heads']:.0f} heads read it. The sink of earlier "
        f"layers has other causes: {earlier} of the {len(sinks)} heads with a sink come before it is written. Taken "
        f"out of the first keys of its readers, and of nothing else, it leaves them {alphas[1]:.0%} of attention on "
        f"the first token in place of {alphas[0]:.0%} (a random vector as long: {alphas[2]:.0%}), and the loss rises "
        f"by {_number(cut, 'change of loss'):.2f}. The graph shows the parts behind the strongest sinks."
    )
    return _Told(f"{count} neurons make the sink of the later layers", text, graph_of_rows(table))


def _removal(rows: Rows) -> _Told | None:
    """Without the massive activation the model breaks; with its mean it does not."""
    table = rows["removing_massive"]
    edits = ("none", "massive entries to zero", "massive entries to their mean")
    before, zero, mean = (_row(table, edit=edit) for edit in edits)
    losses, sinks = ([_number(row, name) for row in (before, zero, mean)] for name in (LOSS, SINK_1))
    if not losses[1] > losses[0] + 1 > losses[2] + MARGIN:
        return None
    text = (
        f"In the first token's vector, {_name(before)} has one number far larger than all others, a massive "
        "activation. Set it to zero, and the model no longer predicts text: its loss rises from "
        f"{losses[0]:.2f} to {losses[1]:.2f} nats a token, and Sink_1 of the layers behind it falls from "
        f"{sinks[0]:.1%} to {sinks[1]:.1%}. Set it to its mean over other texts, and nothing happens ({losses[2]:.2f} "
        "nats): it says nothing about the text."
    )
    return _Told("Without one number the model breaks", text, sweep_figure(table, EDIT, (LOSS, SINK_1)))


def _streaming(rows: Rows) -> _Told | None:
    """A cache that forgets the first token costs perplexity."""
    table = rows["streaming"]
    column = "perplexity after"
    everything, none, one = (_number(_row(table, sinks=sinks), column) for sinks in (None, 0, 1))
    if not none > one * (1 + MARGIN):
        return None
    text = (
        f"Who reads a long text with a window of the last 512 tokens drops the first token at some point. From there "
        f"on the perplexity is {none:.1f}; with all tokens it would be {everything:.1f}. A window of 511 tokens that "
        f"keeps the very first one has {one:.1f}."
    )
    return _Told("Forget the first token, and long texts fall apart", text, sweep_figure(table, "cache", (column,)))


def _mean(table: Table, model: str, column: str) -> float:
    """The mean over the seeds of a model. Raises LookupError where it has none."""
    values = [float(row[column] or 0) for row in table.where(model=model).rows if row[column] is not None]
    if not values:
        raise LookupError(f"{model} has no {column}")
    return fmean(values)


def _sigmoid(rows: Rows) -> _Told | None:
    """Attention that need not add up to one makes no sink."""
    table = rows["twins"]
    softmax, sigmoid = (_mean(table, name, ALPHA_1) for name in ("softmax", "sigmoid"))
    rates = [_mean(table, name, SINK_1) for name in ("softmax", "sigmoid")]
    losses = [_mean(table, name, LOSS) for name in ("softmax", "sigmoid")]
    null = _mean(table, "sigmoid", "null alpha_1")
    if not softmax > null > sigmoid:
        return None
    text = (
        "The paper's explanation: softmax makes the attention of every token add up to one, so a head that needs "
        "nothing must still look somewhere. Sigmoid attention need not add up to anything. Twins that learn the same "
        f"small task (Bigram-Backcopy) to the same loss ({losses[0]:.3f} and {losses[1]:.3f} nats) show the "
        f"difference: with softmax the first token receives {softmax:.1%} (Sink_1 {rates[0]:.1%}), with sigmoid "
        f"{sigmoid:.1%} of all weight ({rates[1]:.1%}); spread evenly it would be {null:.1%}."
    )
    return _Told("Sigmoid attention has no sink", text, importances(replace(table, title="Three twins")))


def _key_biases(rows: Rows) -> _Told | None:
    """A learned key takes the sink over."""
    table = rows["table04_attention_biases"]
    softmax, k_bias, v_bias = (_mean(table, name, ALPHA_1) for name in ("softmax", "k_bias", "v_bias"))
    slot = _mean(table, "k_bias", ALPHA_SLOT)
    if not slot > softmax > k_bias + MARGIN:
        return None
    text = (
        f"Give a model a learned key that belongs to no token and has no value (K biases), and the sink moves there: "
        f"the first token receives {k_bias:.1%} in place of {softmax:.1%}, the learned key {slot:.1%}. A learned value "
        f"does nothing of the kind (V biases: {v_bias:.1%})."
    )
    return _Told("A learned key takes the sink over", text, importances(replace(table, title="Learned keys")))


def _first_position(rows: Rows) -> _Told | None:
    """If positions are learned, the sink goes where p1 goes."""
    table = rows["table07_position_swap"].where(input=MARK, t=SHOWN_TARGET)
    before, swapped, control = (_row(table, edit=edit) for edit in ("none", "p1 <-> p_t", "p_t <-> p_t+1"))
    repeated = rows["table07_position_swap"].where(input=REPEATED_MARK, t=SHOWN_TARGET)
    copies = [_number(_row(repeated, edit=edit), column) for edit, column in (("none", SINK_1), ("p1 <-> p_t", SINK_T))]
    rate, left, moved = _number(before, SINK_1), _number(swapped, SINK_1), _number(swapped, SINK_T)
    if not (moved > rate / 2 > left and copies[1] < copies[0] / 2):
        return None
    to = SHOWN_TARGET - 1
    text = (
        f"{_name(before)} has a learned vector for each position; that of the first is called p1. Swap the vectors of "
        f"positions 0 and {to}, and the sink moves from the first token (Sink_1 {rate:.1%}, afterwards {left:.1%}) to "
        f"the token at position {to} ({moved:.1%}). Swapping two later positions changes nothing "
        f"({_number(control, SINK_1):.1%}). If one token is repeated behind the same beginning, "
        f"less of the sink follows ({copies[0]:.1%}, then {copies[1]:.1%} at position {to})."
    )
    words = {
        "none": "nothing changed", "p1 <- p_t": f"p1 replaced by position {to}'s", "p1 <-> p_t": f"0 and {to} swapped",
        "p_t <-> p_t+1": f"{to} and {to + 1} swapped",
    }  # fmt: skip
    named = tuple({**row, EDIT: words.get(str(row[EDIT]), row[EDIT])} for row in table.rows)
    note = table.note.replace("t counts from 1; ", "").split("; local/")[0]
    moves = Table("The sink goes where p1 goes", f"{MARK}; {note}", named)
    return _Told("The sink follows the first position", text, sweep_figure(moves, EDIT, (SINK_1, SINK_T)))


_TELLERS: Mapping[str, tuple[str, Callable[[Rows], _Told | None]]] = {
    "sink": ("figure19_heads", _sink),
    "words": ("table01_inputs", _words),
    "massive": ("massive_activations", _massive),
    "angle": ("figure02_norms_angles", _angle),
    "source": ("explained_sinks", _source),
    "removal": ("removing_massive", _removal),
    "streaming": ("streaming", _streaming),
    "sigmoid": ("twins", _sigmoid),
    "key-biases": ("table04_attention_biases", _key_biases),
    "position": ("table07_position_swap", _first_position),
}
TOLD_BY = {name: chapter for name, (chapter, _) in _TELLERS.items()}  # the chapter with the numbers of each passage
FINDINGS = ("sink", "position", "key-biases", "sigmoid", "removal")  # what the book opens with
