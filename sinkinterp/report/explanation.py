"""Why heads look at the first token: the parts of their scores, who writes their input, and the effect of cuts.

The graph of the parts has layers downwards and lines by share; a head's map stands beside it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape

import numpy as np
import plotly.graph_objects as go
import torch
from jaxtyping import Float
from plotly.subplots import make_subplots
from torch import Tensor

from ..attention import Edit
from ..checks import InputError
from ..metrics.estimates import estimate, estimate_cells, mean_cells, ratio
from ..metrics.metric import PerSequence
from ..metrics.residuals import Lifetime
from ..plots.theme import COLOURS, GREY, MAGNITUDE, escaped, themed
from ..table import HEAD, LAYER, Cell, Table, no_estimate

WIDEST = 12  # points, of a line whose share is 1
NOTHING = "nothing"  # is cut
SINK = 0.3  # of a head's attention, as the paper counts sinks
_IN_BLOCK = {"head": 0.0, "neuron": 0.3, "MLP": 0.6, "bias": 0.6}  # how far down its block a part stands
SHARE = "share"  # a column
DRAWN = 0.1  # the least share of a line that is drawn of such rows
Edge = tuple[str, str, float]  # from, to, share
Point = tuple[float, float]  # of a node, to the right and downwards


@dataclass(frozen=True)
class CutMap:
    """A head's mean attention map with one part cut, whose name is NOTHING for the model as it is, and the loss.

    A column left of the first key is the slot's.
    """

    cut: str
    weights: Float[np.ndarray, "query column"]
    loss: float

    def sentence(self, untouched: "CutMap") -> str:
        """What became of the sink and of the loss."""
        share = f"{self.cut} cut: {self.weights[:, 0].mean():.2f} to the first, loss {self.loss:.2f}"
        return share if self.cut == NOTHING else f"{share} ({self.loss - untouched.loss:+.2f})"


def graph(edges: Sequence[Edge], title: str, caption: str, maps: Sequence[CutMap] = ()) -> go.Figure:
    """The graph of the edges. Names hold their block, as in "MLP 1", "head 3.7" or "neuron 1.25".

    `maps` are drawn beside it; the first has nothing cut. A click on a part shows the map with that part cut.
    """
    figure = make_subplots(1, 2 if maps else 1, horizontal_spacing=0.1)
    (places, sides), cuts = _laid_out(edges), [cut_map.cut for cut_map in maps]
    for start, end, share in edges:
        (x0, y0), (x1, y1) = places[start], places[end]
        width = max(1, WIDEST * min(abs(share), 1))
        line = {"width": width, "color": COLOURS[0] if share > 0 else COLOURS[1]}
        says = f"{escaped(start)} to {escaped(end)}: {share:.0%}<extra></extra>"
        size = [0, max(14, 2 * width)]
        marker = {"symbol": "arrow", "angleref": "previous", "size": size, "standoff": 9, "color": line["color"]}
        asked = [name if name in cuts else NOTHING for name in (start, end)]  # an end lies under the pointer on a node
        style = {"mode": "lines+markers", "line": line, "marker": marker, "opacity": 0.5, "customdata": asked}
        figure.add_scatter(x=[x0, x1], y=[y0, y1], hovertemplate=says, **style)
        if abs(share) >= DRAWN:
            beside = "middle right" if x0 == x1 else f"top {'right' if x1 > x0 else 'left'}"  # where no line goes
            middle = {"x": [(x0 + x1) / 2], "y": [(y0 + y1) / 2], "text": [f" {share:.0%} "], "mode": "text"}
            figure.add_scatter(**middle, textposition=beside, hoverinfo="skip", textfont={"size": 12}, cliponaxis=False)
    x, y = zip(*places.values(), strict=True)
    depth, ends = 1 + max(y), {end for _, end, _ in edges} - {start for start, _, _ in edges}
    nodes = {"text": list(map(escaped, places)), "customdata": [name if name in cuts else NOTHING for name in places]}
    nodes["textposition"] = ["bottom center" if name in ends else sides[name] for name in places]
    marker = {"size": 18, "color": [COLOURS[2] if name in ends else GREY for name in places]}
    says = "%{text}: click to cut %{customdata}<extra></extra>" if maps else "%{text}<extra></extra>"
    about = {"mode": "markers+text", "marker": marker, "hovertemplate": says, "cliponaxis": False}
    figure.add_scatter(x=x, y=y, **nodes, **about)
    figure.update_xaxes(visible=False, range=[-0.1, 1.1], fixedrange=True, row=1, col=1)
    figure.update_yaxes(visible=False, range=[depth - 0.5, -0.3], fixedrange=True, row=1, col=1)
    if maps:
        _add_maps(figure, maps)
        how = "Click a part to cut it: at the first token it becomes its mean over the others. A click on the head"
        caption = f"{how} undoes it. Weights from 0 to 1. {caption}"
    themed(figure, title, max(220 + int(90 * depth), 520 if maps else 0), caption)
    return figure.update_layout(showlegend=False, margin={"t": 90})


def _add_maps(figure: go.Figure, maps: Sequence[CutMap]) -> None:
    """Draws a heat map for each cut, with its sentence above it. The first one is visible."""
    length, width = maps[0].weights.shape
    later = np.triu(np.ones((length, width)), 1 + width - length) > 0
    hover = {"hovertemplate": "query %{y}, key %{x}: %{z}<extra></extra>", "hoverongaps": False}
    above = {"x": [length / 2], "y": [-0.06 * length], "mode": "text", "hoverinfo": "skip", "textfont": {"size": 12}}
    for i, cut_map in enumerate(maps):
        choice = {"meta": {"choice": cut_map.cut}, "visible": i == 0, "row": 1, "col": 2}
        z = np.where(later, np.nan, cut_map.weights).round(4)
        figure.add_heatmap(z=z, zmin=0, zmax=1, colorscale=MAGNITUDE, showscale=False, **hover, **choice)
        figure.add_scatter(text=[cut_map.sentence(maps[0])], cliponaxis=False, **above, **choice)
    figure.update_xaxes(title="key", showgrid=False, row=1, col=2)
    figure.update_yaxes(title="query", showgrid=False, range=[length - 0.5, -0.12 * length], row=1, col=2)


def _laid_out(edges: Sequence[Edge]) -> tuple[dict[str, Point], dict[str, str]]:
    """The place of each node, as deep as its layer and beside the others of its depth; and where its name is written.

    That is beside the ends of a row, where no line goes, and above the nodes between.
    """
    depths = {name: _depth(name) for edge in edges for name in edge[:2]}
    rows = [[name for name in depths if depths[name] == depth] for depth in sorted(set(depths.values()))]
    places: dict[str, Point] = {}
    sides: dict[str, str] = {}
    for y, row in enumerate(rows):
        is_alone = len(row) == 1 and y < len(rows) - 1
        aside = 0.17 * (y % 3 - 1) if is_alone else 0.0  # so that no line goes through a node
        places |= {name: ((i + 0.5) / len(row) + aside, float(y)) for i, name in enumerate(row)}
        sides |= dict.fromkeys(row, "top center") | {row[-1]: "middle right"}
        if len(row) > 1 or places[row[0]][0] < 0.5:
            sides[row[0]] = "middle left"
    return places, sides


def _depth(name: str) -> float:
    """The block in a name, and how far down the block the part is. The embedding and other biases come first."""
    kind, _, place = name.partition(" ")
    block = place.partition(".")[0]
    return int(block) + _IN_BLOCK.get(kind, 0.6) if block.isdecimal() else -1.0


NAMED = 0.1  # the least share of a score for a part to be named
MOST_NAMED = 5
SHOWN = 0.01  # the least share of a neuron in the graph
COVERED = 0.9  # of the score, by the parts that are named
STANDS_OUT = 10  # times its mean size at other tokens, for an entry of the first token to be followed
READER = 0.5  # the least share of a head's score for it to count as a reader
PART, QUERY_PART, KEY_PART, AS_KEY, AS_QUERY = "part", "query part", "key part", "as key", "as query"
CUT, REMOVED, RANDOM, IN_STREAM, DIRECTLY = "cut", "removed", "random parts", "in the stream", "directly"
INTO_ANSWER = "into the answer"  # logits
ENOUGH = 0.8  # of what is above uniform attention, for a cut to count as the whole explanation
Head = tuple[int, int]  # layer and head, from 0


@dataclass(frozen=True)
class HeadScore:
    """How much higher a head scores the first key (or the slot's) than the others, in parts.

    pairs: mean over queries of the score that each part of the query makes with each part of the key. parts: their
    names. cuts: the edit that cuts a part at the first token, by name; biases have none. score: the same of the whole
    query and key; `pairs` sums to it. first_keys: each part of the residual in the first key, less its mean over the
    others. alpha: importance of the first key. null: the same under uniform attention.
    """

    layer: int
    head: int
    parts: tuple[str, ...]
    cuts: Mapping[str, Edit]
    pairs: Float[Tensor, "sequence part part_of_key"]
    score: PerSequence
    first_keys: Float[Tensor, "sequence part_of_residual d_head"]
    alpha: PerSequence
    null: PerSequence

    @property
    def name(self) -> str:
        """Such as 3.7: layer 3, head 7, both from 0."""
        return f"{self.layer}.{self.head}"

    @property
    def place(self) -> dict[str, Cell]:
        """The cells of a row that say which head it is."""
        return {LAYER: self.layer, HEAD: self.head}

    @cached_property
    def error(self) -> float:
        """How far the parts are from adding up to the score, relative to the largest of the score and its parts."""
        size = torch.maximum(self.score.abs(), self.pairs.abs().amax((1, 2)))
        return float(((self.pairs.double().sum((1, 2)) - self.score).abs() / size).max())

    @cached_property
    def is_above_null(self) -> bool:
        """Tells if the head gives the first key more than uniform attention does, in the mean and in its interval."""
        above = estimate(self.alpha - self.null)
        return above.mean > 0 and not above.low <= 0

    def of_keys(self) -> Float[Tensor, "sequence part"]:
        """The score of each part of the key with the whole query."""
        return self.pairs.sum(1)

    def of_queries(self) -> Float[Tensor, "sequence part"]:
        """The score of each part of the query with the whole key."""
        return self.pairs.sum(2)

    def shares(self) -> list[float]:
        """Mean share of the score, by part of the key."""
        return (self.of_keys().mean(0) / self.score.mean()).tolist()

    def named_cuts(self) -> dict[str, Edit]:
        """The edits that cut the named parts, by name; biases have none."""
        return {name: self.cuts[name] for i in self.main_parts() if (name := self.parts[i]) in self.cuts}

    def main_parts(self) -> list[int]:
        """The parts of the key that explain the score: the largest, each at least a tenth, until nine tenths are."""
        shares, chosen, total = self.shares(), [], 0.0
        for i in sorted(range(len(shares)), key=lambda i: -shares[i])[:MOST_NAMED]:
            if shares[i] < NAMED or total >= COVERED:
                break
            chosen.append(i)
            total += shares[i]
        return chosen


@dataclass(frozen=True)
class Written:
    """What the parts of the last residual add to the logit of `answer` less that of `instead`, at the last token.

    parts: by name; they sum to the difference, at the scale that the last norm has there (direct logit attribution).
    """

    answer: str
    instead: str
    parts: Mapping[str, PerSequence]

    @cached_property
    def difference(self) -> float:
        """The mean difference of the two logits."""
        return float(torch.stack([*self.parts.values()]).sum(0).mean())


@dataclass(frozen=True)
class Neuron:
    """A neuron of the feed-forward layer that writes: its mean share of the entry, and how its input meets its weights.

    cosine: of the first token's normed input with the neuron's row of each input matrix, by the matrix's name; second,
    the mean of the other tokens.
    """

    index: int
    share: float
    cosine: dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Path:
    """From the part that writes the first token's largest entry to the heads whose keys read it.

    dim: of the entry. is_mlp: whether a feed-forward layer writes most of it. at: the block that writes it. value: the
    number that is added. share: of the entry. eraser: the part that takes most of it away, and its share of the
    entry at its largest; None if none takes half.
    writer: its name. block, times: where the entry is followed, and how many times its mean size at the other tokens.
    life: the blocks where most sequences have it massive, by the criterion of `measure`.
    readers: by (layer, head), the writer's share of the head's score. n_heads: how many heads come after the writer.
    neurons: the largest, and how many make `covered` of it.
    """

    dim: int
    is_mlp: bool
    at: int
    value: float
    share: float
    eraser: tuple[str, float] | None
    writer: str
    block: int
    times: float = 0.0
    life: Lifetime | None = None
    readers: Mapping[Head, float] = field(default_factory=dict)
    n_heads: int = 0
    neurons: tuple[Neuron, ...] = ()
    n_neurons: int = 0
    covered: float = 0.0

    def sentence(self) -> str:
        """The path in words."""
        words = f"At the first token, {self.writer} writes {self.value:.4g} into dimension {self.dim} "
        words += f"({self.share:.0%} of the entry)"
        if self.neurons:
            some = "1 neuron makes" if self.n_neurons == 1 else f"{self.n_neurons} neurons make"
            words += f"; {some} {self.covered:.0%} of it"
        reads = "no later head has half of its score from it"
        if self.readers:
            begins = f"from block {min(self.readers)[0]} on it makes at least half of the score, however small"
            reads = f"{begins}, of {len(self.readers)} of {self.n_heads} later heads"
        erased = f"; {self.eraser[0]} erases {self.eraser[1]:.0%} of it" if self.eraser else ""
        where = f"At block {self.block} the entry is {self.times:.0f} times its mean at the others"
        return f"{words}; {reads}{erased}. {where}{_of_life(self.life)}."


@dataclass(frozen=True)
class NoPath:
    """In place of a path: no entry of the first token is large enough at any block, or the embedding makes it.

    dim, block, value: the entry that comes nearest. times: its mean size at the other tokens. life: as in `Path`.
    """

    dim: int
    block: int
    value: float
    times: float
    life: Lifetime | None
    is_embedding: bool

    def sentence(self) -> str:
        """The absence in words, with what was compared."""
        where = f"dimension {self.dim} at block {self.block}, {self.value:.4g}, {self.times:.3g} times"
        where += f" its mean size there{_of_life(self.life)}"
        if self.is_embedding:
            return f"The embedding makes the entry of the first token that stands out: {where}."
        least = f"{STANDS_OUT} times its mean size at the other tokens"
        return f"At no block does the first token's largest entry reach {least} (nearest: {where})."


def _of_life(life: Lifetime | None) -> str:
    return "" if life is None else f"; massive from block {life.first} to {life.last}, as measurements count"


@dataclass(frozen=True, repr=False)
class Explanation:
    """The origin of sinks: the scores of some heads in parts, the path of the massive activation, and cuts.

    note: the protocol. target: what is explained, the first token or the slot. path: None if no entry is large enough.
    no_path: then what came nearest; None where a slot is explained, and no entry was looked for.
    cuts: what becomes of heads whose named parts are set to their mean, and of random ones.
    """

    note: str
    target: str
    heads: tuple[HeadScore, ...]
    path: Path | None
    cuts: Table
    path_cuts: Table
    no_path: NoPath | None = None
    written: Written | None = None

    def __repr__(self) -> str:
        return f"<Explanation of {', '.join(head.name for head in self.heads)}: {self.sentence}>"

    def __str__(self) -> str:
        return "\n\n".join([self.sentence, *(table.to_markdown() for table in self.tables())])

    @property
    def sentence(self) -> str:
        """The answer in plain words."""
        lines = [self._of_head(head) for head in self.strongest_first]
        if found := self.path or self.no_path:
            lines.append(found.sentence())
        if not any(head.alpha.mean() > SINK for head in self.heads):
            what = f"more than {SINK} of its attention: there is hardly a sink to explain."
            lines.append(f"No head here gives {self.target} {what}")
        return "\n".join(lines)

    @property
    def strongest_first(self) -> list[HeadScore]:
        """The heads by how much attention they give, the most first."""
        return sorted(self.heads, key=lambda head: -float(head.alpha.mean()))

    def _of_head(self, head: HeadScore) -> str:
        shares = head.shares()
        named = ", ".join(f"{head.parts[i]} ({shares[i]:.0%})" for i in head.main_parts()) or "no single part"
        score = head.score.mean().item()
        return (
            f"Head {head.name} gives {self.target} {head.alpha.mean():.2f} of its attention (uniform: "
            f"{head.null.mean():.2f}); its score is {abs(score):.3g} {'above' if score >= 0 else 'below'} the others', "
            f"from the keys' {named}."
            f"{self._of_cuts(head)}{self._of_answer(head)}"
        )

    def _of_answer(self, head: HeadScore) -> str:
        """Says what the head itself adds to the logits of the answers; empty where none were given."""
        if self.written is None:
            return ""
        own, whole = self.written.parts[f"head {head.name}"].mean(), self.written.difference
        answers = f"{self.written.answer!r} less {self.written.instead!r}"
        return f" It writes {own:.3g} itself into the logit of {answers}, which is {whole:.3g}."

    def _of_cuts(self, head: HeadScore) -> str:
        """Says how much cutting the named parts removes, and random ones, and warns if that is less than 80%."""
        if not head.is_above_null:
            return " That is not above uniform attention, so cuts have nothing to remove."
        shares = {str(row[CUT]): float(row[REMOVED] or 0) for row in self.cuts.records() if row[HEAD] == head.name}
        removed = {cut.rpartition(", ")[2]: share for cut, share in shares.items() if RANDOM not in cut}
        controls = {cut.rpartition(", ")[2]: f"{share:.0%}" for cut, share in shares.items() if RANDOM in cut}
        uncut = [name for i in head.main_parts() if (name := head.parts[i]) not in head.cuts]
        without = f" No edit cuts {' or '.join(uncut)} alone." if uncut else ""
        if not removed:
            return without
        words = " and ".join(f"{x:.0%} {way} (random parts: {controls.get(way)})" for way, x in removed.items())
        short = [way for way, share in removed.items() if share < ENOUGH]
        warning = f"; {' and '.join(short)}, these parts alone do not explain it" if short else ""
        cut = "the others" if uncut else "them"
        return f"{without} Cutting {cut} removes {words} of what is above uniform attention{warning}."

    def tables(self) -> Sequence[Table]:
        """All tables: parts, pairs, cuts, and those of the path."""
        of_path = self.path_cuts, self.neurons(), self.readers(top=12)
        every = self.parts(), self.pairs(), self.cuts, *of_path, self.writers(top=12)
        return [table for table in every if table.records()]

    def parts(self, least: float = 0.05) -> Table:
        """Share of each head's score by part: as part of the key, and as part of the query; small ones are left out.

        Where answers were given, also what the part adds to the difference of their logits, with a row for each head.
        """
        rows: list[dict[str, Cell]] = []
        for head in self.heads:
            keys, queries = (x.mean(0) / head.score.mean() for x in (head.of_keys(), head.of_queries()))
            shown = [i for i in range(len(head.parts)) if max(keys[i].abs(), queries[i].abs()) >= least]
            for i in sorted(shown, key=lambda i: -float(keys[i].abs())):
                shares = [ratio(x[:, i], head.score) for x in (head.of_keys(), head.of_queries())]
                cells = estimate_cells(AS_KEY, shares[0]) | estimate_cells(AS_QUERY, shares[1])
                rows.append({**head.place, PART: head.parts[i], **cells, **self._added(head.parts[i])})
            if self.written is not None:
                name, cells = f"head {head.name}", no_estimate(AS_KEY) | no_estimate(AS_QUERY)
                rows.append({**head.place, PART: name, **cells, **self._added(name)})
        return Table.of(f"Which parts make heads look at {self.target}?", self.note, tuple(rows))

    def _added(self, part: str) -> dict[str, Cell]:
        """What a part adds to the answers' logits; None for what is not in the residual, such as the bias of keys."""
        if self.written is None:
            return {}
        added = self.written.parts.get(part)
        return no_estimate(INTO_ANSWER) if added is None else mean_cells(INTO_ANSWER, added)

    def writers(self, top: int | None = None) -> Table:
        """What each part of the last residual adds to the answers' logits, also heads after the explained ones.

        The largest first; default all. Without rows where no answers were given.
        """
        parts = self.written.parts if self.written else {}
        largest = sorted(parts, key=lambda part: -float(parts[part].mean().abs()))[:top]
        rows = tuple({PART: part, **mean_cells(INTO_ANSWER, parts[part])} for part in largest)
        return Table.of("Which parts of the model write the answer?", self.note, rows)

    def pairs(self, top: int = 8) -> Table:
        """The largest pairs of a part of the query with a part of the key, by head."""
        rows: list[dict[str, Cell]] = []
        for head in self.heads:
            order = head.pairs.mean(0).abs().flatten().argsort(descending=True)[:top].tolist()
            for i, j in (divmod(k, len(head.parts)) for k in order):
                cells = mean_cells("score", head.pairs[:, i, j])
                cells[SHARE] = (head.pairs[:, i, j].mean() / head.score.mean()).item()
                rows.append({**head.place, QUERY_PART: head.parts[i], KEY_PART: head.parts[j], **cells})
        error = max(head.error for head in self.heads)
        note = f"{self.note}; all pairs add up to the score within {error:.0e}"
        return Table.of("Which pairs of parts make the score?", note, tuple(rows))

    def readers(self, top: int | None = None) -> Table:
        """The heads whose keys read what the writer wrote at the first token, the strongest first; default all."""
        ordered = sorted(self.path.readers.items() if self.path else (), key=lambda item: -item[1])[:top]
        rows = tuple({LAYER: layer, HEAD: head, SHARE: share} for (layer, head), share in ordered)
        note = f"{self.note}; share of the head's score, however small that is, of at least {READER:.0%}"
        return Table.of("Which heads have their score from it?", note, rows)

    def neurons(self) -> Table:
        """The neurons that write the entry, and how their input meets them; the first token beside the others."""
        rows: list[dict[str, Cell]] = []
        for neuron in self.path.neurons if self.path else ():
            rows.append({"neuron": neuron.index, SHARE: neuron.share})
            for name, (first, others) in neuron.cosine.items():
                rows[-1] |= {f"cosine with {name}": first, f"{name}, other tokens": others}
        return Table.of("Which neurons write it?", self.note, tuple(rows))

    def plot(self, head: tuple[int, int] | None = None, maps: Sequence[CutMap] = ()) -> go.Figure:
        """The plotly figure of the path: layers downwards, lines as wide as their shares; of all heads, or of one.

        `maps`, which `measurement.explaining` returns for one head, are drawn beside it. A click on a part shows the
        map with that part cut. Raises InputError for a head that was not explained.
        """
        place = tuple(head) if isinstance(head, Sequence) else head
        chosen = [score for score in self.heads if head is None or (score.layer, score.head) == place]
        if not chosen:
            raise InputError(f"head {head} was not explained; {self!r:.80}")
        title = f"Where the attention to {self.target} comes from"
        return graph(self.edges(chosen), title, self.note, maps)

    def edges(self, heads: Sequence[HeadScore]) -> list[Edge]:
        """The lines of the graph: from the named parts to their heads, and from the largest neurons to the writer."""
        edges = [(s.parts[i], f"head {s.name}", s.shares()[i]) for s in heads for i in s.main_parts()]
        if self.path is not None and any(start == self.path.writer for start, _, _ in edges):
            neurons = [n for n in self.path.neurons[:4] if n.share >= SHOWN]
            edges += [(f"neuron {self.path.at}.{n.index}", self.path.writer, n.share) for n in neurons]
        return edges

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return f"<p>{escape(self.sentence)}</p>" + "".join(table._repr_html_() for table in self.tables())
