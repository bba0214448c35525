"""place_or_token: whether a token is the sink because it sees no other token, or because it is BOS.

The first token sees itself alone. Here another token does, in some layers. If that token becomes a sink, sinks are
bound to a place; if only BOS becomes one in a later place, they are bound to a token. Source: Gu et al. 2025,
section 3.1; `docs/rules.md` says how the answer is found.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import plotly.graph_objects as go
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attention import CALL, RESIDUAL, AttentionCall, Edit, Read
from ..backends.subject import Subject, Trace
from ..checks import LARGEST, InputError, different_numbers, whole_number
from ..data.progress import OnProgress, progress_of
from ..data.tokens import Tokens, TokensLike
from ..interventions.attention_layers import AttendSelfOnly
from ..interventions.changes import ChangeResidual, Put
from ..metrics.estimates import SHARES, SIZES, estimate_cells, intervals, mean_cells, rate_cells, ratio
from ..metrics.importance import check_epsilon, importance, sink_rate, uniform_importance
from ..metrics.metric import next_token_loss
from ..metrics.residuals import is_massive
from ..plots.theme import sweep_figure
from ..report.readings import short_name
from ..table import EDIT, LOSS, NULL, POSITION, SINK_1, Cell, Table, high_of, low_of
from .measure import ModelLike, equal_inputs_of, passes, run_note

AS_IS, ALONE, ONE_MORE = "none", "sees itself alone", "sees itself and a random token"
BOS_TOO, BOS_THERE = "BOS in place k, too", "BOS in place k, an ordinary token first"
K, FIRST, LAST, SINK_K, ALPHA_K = "k", "first layer", "last layer", "Sink_k", "alpha_k"
ENTRY, OTHER, OTHER_PLACE, MASSIVE = "entry over token 1's", "strongest other alpha", "its k", "massive tokens"
LEAST, HALF = 0.05, 0.5  # Sink_k of no sink; the part of Sink_1 that makes a sink
PLACES = (5, 10, 33)  # positions that are asked about by default
SHORTEST = max(PLACES) + 2  # tokens, of texts that have a token before and behind each
Row = Mapping[str, Cell]


class Answer(StrEnum):
    """What a sink is bound to."""

    PLACE = "bound to its place"
    TOKEN = "bound to BOS"
    BOTH = "bound to its place and to BOS"
    NEITHER = "bound neither to its place nor to BOS"
    NOT_ASKED = "not there, so nothing is asked"


@dataclass(frozen=True)
class Setting:
    """What is changed about token k: what it sees in layers `first` to `last`, or where BOS is."""

    position: int
    edit: str
    first: int | None = None
    last: int | None = None


@dataclass(frozen=True)
class Seen:
    """What the passes of a setting showed, a tensor for every part of the texts.

    sinks: alpha of the first token and of token k. null: of token k. The others are kept where a pass was whole.
    """

    sinks: list[Float[Tensor, "sequence layer head 2"]] = field(default_factory=list)
    null: list[Float[Tensor, "sequence layer head"]] = field(default_factory=list)
    alpha: list[Float[Tensor, "sequence pos"]] = field(default_factory=list)
    x: list[Float[Tensor, "sequence block 2 d_model"]] = field(default_factory=list)
    massive: list[Int[Tensor, "sequence block"]] = field(default_factory=list)
    loss: list[Float[Tensor, " sequence"]] = field(default_factory=list)


def place_or_token(
    model: ModelLike,
    tokens: TokensLike | Any = None,
    *,
    positions: Sequence[int] = PLACES,
    layers: Sequence[int] | None = None,
    epsilon: float = 0.3,
    seed: int = 0,
    progress: bool | OnProgress = True,
) -> Table:
    """Whether the sink of a model is bound to its place or to BOS: a sentence, its rows, and Sink_k by depth.

    In turn, the tokens at `positions` (from 0) see themselves alone, in layers 0 to d and in layers d to the last. d is
    each of `layers` (default: all that attend). `seed` draws the random token that a control sees. Takes models and
    tokens as `measure` does, of one length. The title is the sentence; `table.plot()` draws Sink_k over d. Raises
    InputError for positions that are the first or the last, and for layers that do not attend.
    """
    subject, given = equal_inputs_of(model, tokens)
    if positions is PLACES:
        check_default_places(given.shape[1], f"read texts of {SHORTEST} or more, or give positions=[...] they have")
    places = different_numbers(positions, "positions", 2, given.shape[1] - 2)
    attending = subject.shape.attention_layers
    depths = attending if layers is None else sorted(different_numbers(layers, "layers", 0, attending[-1]))
    if absent := [layer for layer in depths if layer not in attending]:
        raise InputError(f"layer {absent[0]} does not attend; choose among {', '.join(map(str, attending))}")
    check_epsilon(epsilon)
    others = {place: _drawn(place, len(given), whole_number(seed, "seed", 0, LARGEST)) for place in places}
    seen: dict[Setting, Seen] = {}
    with progress_of(progress, f"masking {subject.name}") as on_pass:
        for rows, batch in passes(subject, given):
            tried = _Passes(subject, batch.to(subject.device), depths, {k: others[k][rows.cpu()] for k in places}, seen)
            for done, _ in enumerate(tried.run(), 1):
                on_pass(int(rows[0]) * tried.count + done * len(rows), len(given) * tried.count)
    table_rows = tuple(_rows(seen, epsilon))
    unsure = ", ".join(map(str, within_an_interval(table_rows))) or "no k"
    bounds = f"half of Sink_1 lies within the interval of Sink_k at {unsure}"
    note = f"{run_note(subject, given)}, epsilon={epsilon}; {intervals(len(given))}; {bounds}; {_NOTE}"
    few = () if len(depths) == len(attending) else depths
    return Table.of(sentence_of(short_name(subject.name), table_rows, few), note, table_rows, depth_figure)


def check_default_places(length: int, fix: str) -> None:
    """Raises InputError, which ends in `fix`, for texts that are too short for the default positions."""
    if length < SHORTEST:
        asked = ", ".join(map(str, PLACES))
        raise InputError(f"positions {asked} are asked about by default, and these texts have {length} tokens; {fix}")


_NOTE = (
    "k from 1, position from 0; first and last layer: where token k sees itself alone, or one random token more; "
    "null: alpha_k of uniform attention, whose Sink_k is 0; entry: |x| of token k, at the block and dimension where "
    "the unmasked token 1's is largest; strongest other: mean over heads, at most three quarters into the text; "
    "massive tokens: at that block; loss in nats, without predictions at k and of k"
)


@dataclass(frozen=True)
class _Passes:
    """The passes over some texts, which add to `seen`. others: by position, the earlier tokens that a control sees."""

    subject: Subject
    batch: Tokens
    depths: Sequence[int]
    others: Mapping[int, Int[Tensor, " sequence"]]
    seen: dict[Setting, Seen]

    @property
    def bos(self) -> int | None:
        """BOS of the model's tokenizer."""
        return getattr(self.subject.tokenizer, "bos_token_id", None)

    @property
    def begins_with_bos(self) -> bool:
        return self.bos is not None and bool(self.batch[:, 0].eq(self.bos).all())

    @property
    def count(self) -> int:
        """How many passes there are."""
        n_bos = 0 if self.bos is None else 1 + self.begins_with_bos
        return 1 + len(self.others) * (2 + n_bos + len(self._partial()))

    def run(self) -> Iterator[None]:
        """Runs each pass, and yields behind it."""
        attending = self.subject.shape.attention_layers
        plain = self._whole(self.batch, [])
        yield
        for position, others in self.others.items():
            alone = Setting(position, ALONE, attending[0], attending[-1])
            masked = self._whole(self.batch, [AttendSelfOnly(positions=(position,))])
            self._keep(Setting(position, AS_IS), plain, self.batch)
            self._keep(alone, masked, self.batch)
            yield
            one_more = self._whole(self.batch, [_with_one_more(position, others)])
            self._keep(replace(alone, edit=ONE_MORE), one_more, self.batch)
            yield
            for edit, texts in self._with_bos(position):
                self._keep(Setting(position, edit), self._whole(texts, []), texts)
                yield
            for first, last in self._partial():
                self._part(replace(alone, first=first, last=last), plain, masked)
                yield

    def _partial(self) -> list[tuple[int, int]]:
        """The layers 0 to d, and d to the last, but all."""
        first, *_, last = (*self.subject.shape.attention_layers, self.subject.shape.attention_layers[-1])
        return [(first, d) for d in self.depths if d != last] + [(d, last) for d in self.depths if d != first]

    def _with_bos(self, position: int) -> Iterator[tuple[str, Tokens]]:
        """The texts with BOS at a position: beside the first BOS, and behind an ordinary first token."""
        if self.bos is None:
            return
        mark = torch.full_like(self.batch[:, :1], self.bos)
        later = self.batch[:, position + 1 :]
        there = torch.cat((self.batch[:, :position], mark, later), 1)
        if self.begins_with_bos:
            yield BOS_TOO, there
            there = torch.cat((self.batch[:, 1 : position + 1], mark, later), 1)
        yield BOS_THERE, there

    def _whole(self, texts: Tokens, edits: Sequence[Any]) -> Trace:
        """A pass of all blocks with the residuals, alpha and its null, from which partial passes start."""
        reads = {"x": RESIDUAL.read(torch.clone), **_alphas()}
        return self.subject.run(texts, reads=reads, edits=edits)

    def _keep(self, setting: Setting, trace: Trace, texts: Tokens) -> None:
        """Adds what a whole pass showed about token k."""
        seen, k, x = self.seen.setdefault(setting, Seen()), setting.position, trace["x"]
        seen.sinks.append(trace["alpha"][..., [0, k]].cpu())
        seen.null.append(trace["null"][..., k].cpu())
        seen.alpha.append(trace["alpha"].mean((1, 2)).cpu())
        seen.x.append(x[:, :, [0, k]].float().cpu())
        seen.massive.append(torch.stack([is_massive(of_block).any(-1).sum(-1) for of_block in x.unbind(1)], 1).cpu())
        loss = next_token_loss(trace.logits, texts)
        seen.loss.append(loss[:, [i for i in range(loss.shape[1]) if i not in (k - 1, k)]].mean(1).cpu())

    def _part(self, setting: Setting, plain: Trace, masked: Trace) -> None:
        """Runs the blocks behind the first change, from a pass that is alike before them; all where a model must."""
        attending, k, first, last = self.subject.shape.attention_layers, setting.position, setting.first, setting.last
        assert first is not None and last is not None
        is_late = last == attending[-1]  # layers d to the last: like the plain pass before d, else like the masked one
        before, start = (plain, first) if is_late else (masked, last + 1)
        layers = [layer for layer in attending if first <= layer <= last]
        edits: list[Edit] = [AttendSelfOnly(positions=(k,), layers=layers)]
        blocks = None
        if self.subject.leaves_out_blocks:
            blocks = range(start, self.subject.shape.n_layers)
            put = ChangeResidual(Put({start: before["x"][:, start]}), layers=[start])
            edits = [*edits, put] if is_late else [put]
        trace = self.subject.run(self.batch, reads=_alphas([0, k]), edits=edits, blocks=blocks, logits=False)
        n_new, seen = sum(layer >= start for layer in attending), self.seen.setdefault(setting, Seen())
        for name, keys, parts in (("alpha", [0, k], seen.sinks), ("null", [k], seen.null)):
            old = before[name][:, : len(attending) - n_new, :, keys]
            parts.append(torch.cat((old, trace[name][:, -n_new:, :, -len(keys) :]), 1).squeeze(-1).cpu())


def _alphas(keys: Sequence[int] | None = None) -> dict[str, Read]:
    """Reads of alpha and of its null, of all keys by default."""

    def reading(function: Callable[[AttentionCall, Tensor], Tensor]) -> Read:
        return CALL.read(lambda call: function(call, call.keys if keys is None else call.keys[list(keys)]))

    return {"alpha": reading(importance), "null": reading(uniform_importance)}


def _drawn(position: int, n: int, seed: int) -> Int[Tensor, " sequence"]:
    """A random position of each text between the first and this one."""
    generator = torch.Generator().manual_seed((seed + position) % LARGEST)
    return torch.randint(1, position, (n,), generator=generator)


def _with_one_more(position: int, others: Int[Tensor, " sequence"]) -> Callable[[AttentionCall], AttentionCall]:
    """The edit after which a token of each text sees itself and one other token, if it saw that before."""

    def changed(call: AttentionCall) -> AttentionCall:
        mask = call.allowed().expand(len(others), -1, -1, -1).clone()
        rows, keys = torch.arange(len(others), device=mask.device), others.to(mask.device)
        could_see = mask[rows, :, position, keys]
        mask[:, :, position] = False
        mask[:, :, position, position] = True
        mask[rows, :, position, keys] = could_see
        return replace(call, mask=mask)

    return changed


def _rows(seen: Mapping[Setting, Seen], epsilon: float) -> Iterator[dict[str, Cell]]:
    for setting, parts in seen.items():
        sinks, plain = torch.cat(parts.sinks), seen[Setting(setting.position, AS_IS)]
        cells: dict[str, Cell] = {
            K: setting.position + 1, POSITION: setting.position, EDIT: setting.edit,
            FIRST: setting.first, LAST: setting.last,
        }  # fmt: skip
        cells |= rate_cells(SINK_K, sink_rate(sinks[..., 1], epsilon))
        cells |= {NULL: torch.cat(parts.null).mean().item()}
        cells |= mean_cells(ALPHA_K, sinks[..., 1].mean((1, 2)), SHARES)
        cells |= rate_cells(SINK_1, sink_rate(sinks[..., 0], epsilon))
        yield cells | (_check(parts, plain, setting.position) if parts.x else dict.fromkeys(_CHECKED))


_CHECKED = (ENTRY, low_of(ENTRY), high_of(ENTRY), OTHER, OTHER_PLACE, MASSIVE, LOSS, low_of(LOSS), high_of(LOSS))


def _check(parts: Seen, plain: Seen, position: int) -> dict[str, Cell]:
    """The manipulation check of a whole run, beside the unmasked one."""
    x, first = torch.cat(parts.x).abs(), torch.cat(plain.x).abs()[:, :, 0]
    block, dim = divmod(int(first.mean(0).argmax()), first.shape[-1])
    alpha = torch.cat(parts.alpha).mean(0)
    alpha = alpha[: 3 * len(alpha) // 4].clone()
    alpha[[place for place in (0, position) if place < len(alpha)]] = 0
    return {
        **estimate_cells(ENTRY, ratio(x[:, block, 1, dim], first[:, block, dim])),
        OTHER: alpha.max().item(),
        OTHER_PLACE: int(alpha.argmax()) + 1,
        MASSIVE: torch.cat(parts.massive)[:, block].float().mean().item(),
        **mean_cells(LOSS, torch.cat(parts.loss), SIZES),
    }


def answer_of(rows: Sequence[Row]) -> Answer:
    """The answer that the rows of a table give, by the rule in `docs/rules.md`."""
    before = {row[K]: _number(row[SINK_1]) for row in rows if row[EDIT] == AS_IS}
    if max(before.values()) <= LEAST:
        return Answer.NOT_ASKED
    alone, there = _by_place(rows, ALONE), _by_place(rows, BOS_THERE)
    by_place = all(alone[k] >= HALF * before[k] for k in before)
    by_token = bool(there) and all(there[k] >= HALF * before[k] for k in before)
    if by_place:
        return Answer.BOTH if by_token else Answer.PLACE
    return Answer.TOKEN if by_token and max(alone.values()) <= LEAST else Answer.NEITHER


def within_an_interval(rows: Sequence[Row]) -> list[int]:
    """The k where half of Sink_1 lies within the interval of Sink_k, with the mask or as BOS: means decide there."""
    half = {row[K]: HALF * _number(row[SINK_1]) for row in rows if row[EDIT] == AS_IS}
    whole = [row for row in rows if row[EDIT] in (ALONE, BOS_THERE) and _is_whole(row)]
    unsure = [row for row in whole if _number(row[low_of(SINK_K)]) <= half[row[K]] <= _number(row[high_of(SINK_K)])]
    return sorted({int(_number(row[K])) for row in unsure})


def depth_of(rows: Sequence[Row]) -> tuple[int | None, int | None]:
    """The smallest d whose layers 0 to d make half of what all layers make, mean over k; and the largest of d to last.

    None where all layers make no sink.
    """
    whole = _by_place(rows, ALONE)
    goal = HALF * sum(whole.values()) / len(whole)
    if goal <= HALF * LEAST:
        return None, None
    alone = [row for row in rows if row[EDIT] == ALONE]
    ((start, end),) = {_span(row) for row in alone if _is_whole(row)}
    enough: set[tuple[int, int]] = set()
    for span in {_span(row) for row in alone}:
        rates = [_number(row[SINK_K]) for row in alone if _span(row) == span]
        enough |= {span} if sum(rates) / len(rates) >= goal else set()
    return min(last for first, last in enough if first == start), max(first for first, last in enough if last == end)


def _span(row: Row) -> tuple[int, int]:
    return int(_number(row[FIRST])), int(_number(row[LAST]))


def _is_whole(row: Row) -> bool:
    return row[LOSS] is not None


def _number(cell: Cell) -> float:
    return float("nan") if cell is None else float(cell)


def _by_place(rows: Sequence[Row], edit: str) -> dict[Cell, float]:
    """Sink_k of the whole runs of an edit, by k."""
    return {row[K]: _number(row[SINK_K]) for row in rows if row[EDIT] == edit and _is_whole(row)}


def sentence_of(name: str, rows: Sequence[Row], tried: Sequence[int] = ()) -> str:
    """The answer in a sentence, with its numbers. tried: the depths d, if they are not all."""
    answer, (early, late) = answer_of(rows), depth_of(rows)
    places = [row[K] for row in rows if row[EDIT] == AS_IS]
    rates = {edit: _by_place(rows, edit) for edit in (ALONE, ONE_MORE, BOS_THERE)}
    (first, *_) = [_number(row[SINK_1]) for row in rows if row[EDIT] == AS_IS]

    def percents(edit: str) -> str:
        return ", ".join(f"{rates[edit][k]:.1%}" for k in places)

    words = f"{name}: the sink is {answer}. Sink_1 is {first:.1%}. Sink_k (k = {', '.join(map(str, places))}) is "
    words += f"{percents(ALONE)} where token k sees itself alone, {percents(ONE_MORE)} where it sees one token more"
    words += f", and {percents(BOS_THERE)} where it is BOS behind another token" if rates[BOS_THERE] else ""
    few = f" (of d = {', '.join(map(str, tried))})" if tried else ""
    depth = (
        f"Layers 0 to {early} are the fewest first ones that make half of it, {late} to the last the fewest last ones"
    )
    return f"{words}." if early is None else f"{words}. {depth}{few}."


def depth_figure(table: Table, by: str = K) -> go.Figure:
    """Sink_k over the depth d of the mask: in layers 0 to d, and in layers d to the last; grey: one token more.

    by: the column whose values have a curve each; the grey line is drawn if these are the places of one model.
    """
    panels = ("Sink_k, layers 0 to d", "Sink_k, layers d to the last")
    rows = [row for row in table.records() if row[EDIT] == ALONE]
    whole = {row[by]: _span(row) for row in rows if _is_whole(row)}
    lines: dict[tuple[Cell, int], dict[str, Cell]] = {}
    control = {row[by]: row[SINK_K] for row in table.records() if row[EDIT] == ONE_MORE}
    for row in rows:
        (first, last), (start, end) = _span(row), whole[row[by]]
        for panel, is_here, depth in zip(panels, (first == start, last == end), (last, first), strict=True):
            if is_here:
                empty = {name: None for each in panels for name in (each, low_of(each), high_of(each))}
                cells = lines.setdefault((row[by], depth), {by: row[by], "d": depth, **empty})
                ends = {panel: SINK_K, low_of(panel): low_of(SINK_K), high_of(panel): high_of(SINK_K)}
                cells |= {name: row[source] for name, source in ends.items()}
                cells |= {f"control {each}": control[row[by]] for each in panels if by == K}
    drawn = tuple(sorted(lines.values(), key=lambda row: int(_number(row["d"]))))
    return sweep_figure(Table.of(table.title, table.note, drawn), "d", panels, by=by)
