"""place_or_token: whether a token is the sink because it sees no other token, or because it is BOS.

The first token sees itself alone. Here another token does, in some layers. If that token becomes a sink, sinks are
bound to a place; if only BOS becomes one in a later place, they are bound to a token. Source: Gu et al. 2025,
section 3.1; `docs/rules.md` says how the answer is found.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import pandas
import plotly.graph_objects as go
import torch
from jaxtyping import Int
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
from ..table import EDIT, LOSS, NULL, POSITION, SINK_1, Cell, Table, high_of, low_of, no_estimate
from .measure import ModelLike, equal_inputs_of, passes, run_note

AS_IS, ALONE, ONE_MORE = "none", "sees itself alone", "sees itself and a random token"
BOS_TOO, BOS_THERE = "BOS in place k, too", "BOS in place k, an ordinary token first"
K, FIRST, LAST, SINK_K, ALPHA_K = "k", "first layer", "last layer", "Sink_k", "alpha_k"
ENTRY, OTHER, OTHER_PLACE, MASSIVE = "entry over token 1's", "strongest other alpha", "its k", "massive tokens"
LEAST, HALF = 0.05, 0.5  # Sink_k of no sink; the part of Sink_1 that makes a sink
PLACES = (5, 10, 33)  # positions that are asked about by default
SHORTEST = max(PLACES) + 2  # tokens, of texts that have a token before and behind each
Answers = dict[str, Tensor]  # of the passes of a setting, sequence first
Span = tuple[int, int]  # first and last layer


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
    bos = getattr(subject.tokenizer, "bos_token_id", None)
    tried = _Tried(subject, depths, bos, begins_with_bos=bos is not None and bool(given[:, 0].eq(bos).all()))
    parts: dict[Setting, list[Answers]] = {}
    with progress_of(progress, f"masking {subject.name}") as on_pass:
        for rows, batch in passes(subject, given):
            done = int(rows[0]) * len(places) * tried.count
            others_here = {place: others[place][rows.cpu()] for place in places}
            for setting, answers in tried.answers(batch.to(subject.device), others_here):
                parts.setdefault(setting, []).append({name: answer.cpu() for name, answer in answers.items()})
                done += len(rows)
                on_pass(done, len(given) * len(places) * tried.count)
    table = Table.of("", "", _rows(parts, epsilon), depth_figure)
    unsure = ", ".join(map(str, within_an_interval(table))) or "no k"
    bounds = f"half of Sink_1 lies within the interval of Sink_k at {unsure}"
    note = f"{run_note(subject, given)}, epsilon={epsilon}; {intervals(len(given))}; {bounds}; {_NOTE}"
    few = () if len(depths) == len(attending) else depths
    return replace(table, title=sentence_of(short_name(subject.name), table, few), note=note)


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
class _Tried:
    """What is tried at every position of some texts. bos: BOS of the model's tokenizer; None without one."""

    subject: Subject
    depths: Sequence[int]
    bos: int | None
    begins_with_bos: bool

    @property
    def spans(self) -> list[Span]:
        """The layers 0 to d, and d to the last, but all."""
        first, last = self.subject.shape.attention_layers[0], self.subject.shape.attention_layers[-1]
        return [(first, d) for d in self.depths if d != last] + [(d, last) for d in self.depths if d != first]

    @property
    def bos_edits(self) -> dict[str, int]:
        """BOS in place k, beside the first BOS or behind an ordinary first token; and where such texts begin."""
        if self.bos is None:
            return {}
        return {BOS_TOO: 0, BOS_THERE: 1} if self.begins_with_bos else {BOS_THERE: 0}

    @property
    def count(self) -> int:
        """How many settings each position has."""
        return 3 + len(self.bos_edits) + len(self.spans)

    def answers(
        self, batch: Tokens, others: Mapping[int, Int[Tensor, " sequence"]]
    ) -> Iterator[tuple[Setting, Answers]]:
        """Each setting, and what its pass over some texts shows. others: the earlier token that a control sees."""
        first, last = self.subject.shape.attention_layers[0], self.subject.shape.attention_layers[-1]
        plain = self._whole(batch)
        for k, other in others.items():
            alone = Setting(k, ALONE, first, last)
            yield Setting(k, AS_IS), _of_token(k, plain, batch)
            masked = self._whole(batch, AttendSelfOnly(positions=(k,)))
            yield alone, _of_token(k, masked, batch)
            yield replace(alone, edit=ONE_MORE), _of_token(k, self._whole(batch, _with_one_more(k, other)), batch)
            for edit, start in self.bos_edits.items():
                assert self.bos is not None  # else there are no such edits
                mark = torch.full_like(batch[:, :1], self.bos)
                texts = torch.cat((batch[:, start : start + k], mark, batch[:, k + 1 :]), 1)
                yield Setting(k, edit), _of_token(k, self._whole(texts), texts)
            for span in self.spans:
                yield Setting(k, ALONE, *span), self._partial(batch, k, span, plain, masked)

    def _whole(self, texts: Tokens, *edits: Any) -> Trace:
        """A pass of all blocks with the residuals, alpha and its null, from which partial passes start."""
        reads = {"x": RESIDUAL.read(torch.clone), **_alphas()}
        return self.subject.run(texts, reads=reads, edits=edits)

    def _partial(self, batch: Tokens, k: int, span: Span, plain: Trace, masked: Trace) -> Answers:
        """Alpha and its null where some layers are masked.

        Runs the blocks behind the first change, from a pass that is alike before them; all where a model must.
        """
        attending, (first, last) = self.subject.shape.attention_layers, span
        is_late = last == attending[-1]  # layers d to the last: like the plain pass before d, else like the masked one
        before, start = (plain, first) if is_late else (masked, last + 1)
        layers = [layer for layer in attending if first <= layer <= last]
        edits: list[Edit] = [AttendSelfOnly(positions=(k,), layers=layers)]
        blocks = None
        if self.subject.leaves_out_blocks:
            blocks = range(start, self.subject.shape.n_layers)
            put = ChangeResidual(Put({start: before["x"][:, start]}), layers=[start])
            edits = [*edits, put] if is_late else [put]
        trace = self.subject.run(batch, reads=_alphas([0, k]), edits=edits, blocks=blocks, logits=False)
        n_new = sum(layer >= start for layer in attending)
        alpha, null = (
            torch.cat((before[name][:, :-n_new, :, [0, k]], trace[name][:, -n_new:]), 1) for name in ("alpha", "null")
        )
        return {"alpha": alpha, "null": null[..., 1]}


def _of_token(k: int, trace: Trace, texts: Tokens) -> Answers:
    """What a whole pass shows about the first token and token k."""
    x, loss = trace["x"], next_token_loss(trace.logits, texts)
    return {
        "alpha": trace["alpha"][..., [0, k]],
        "null": trace["null"][..., k],
        "alpha of all": trace["alpha"].mean((1, 2)),
        "x": x[:, :, [0, k]].float(),
        "massive": torch.stack([is_massive(of_block).any(-1).sum(-1) for of_block in x.unbind(1)], 1),
        "loss": loss[:, [i for i in range(loss.shape[1]) if i not in (k - 1, k)]].mean(1),
    }


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


def _rows(parts: Mapping[Setting, Sequence[Answers]], epsilon: float) -> Iterator[dict[str, Cell]]:
    """A row for each setting, of its answers on parts of the texts."""
    answers = {
        setting: {name: torch.cat([part[name] for part in mine]) for name in mine[0]} for setting, mine in parts.items()
    }
    for setting, found in answers.items():
        alpha, plain = found["alpha"], answers[Setting(setting.position, AS_IS)]
        cells: dict[str, Cell] = {
            K: setting.position + 1, POSITION: setting.position, EDIT: setting.edit,
            FIRST: setting.first, LAST: setting.last,
        }  # fmt: skip
        cells |= rate_cells(SINK_K, sink_rate(alpha[..., 1], epsilon))
        cells |= {NULL: found["null"].mean().item()}
        cells |= mean_cells(ALPHA_K, alpha[..., 1].mean((1, 2)), SHARES)
        cells |= rate_cells(SINK_1, sink_rate(alpha[..., 0], epsilon))
        yield cells | (_check(found, plain, setting.position) if "x" in found else dict.fromkeys(_CHECKED))


_CHECKED = (*no_estimate(ENTRY), OTHER, OTHER_PLACE, MASSIVE, *no_estimate(LOSS))


def _check(found: Answers, plain: Answers, position: int) -> dict[str, Cell]:
    """The manipulation check of a whole run, beside the unmasked one."""
    x, first = found["x"].abs(), plain["x"].abs()[:, :, 0]
    block, dim = divmod(int(first.mean(0).argmax()), first.shape[-1])
    alpha = found["alpha of all"].mean(0)
    alpha = alpha[: 3 * len(alpha) // 4].clone()
    alpha[[place for place in (0, position) if place < len(alpha)]] = 0
    return {
        **estimate_cells(ENTRY, ratio(x[:, block, 1, dim], first[:, block, dim])),
        OTHER: alpha.max().item(),
        OTHER_PLACE: int(alpha.argmax()) + 1,
        MASSIVE: found["massive"][:, block].float().mean().item(),
        **mean_cells(LOSS, found["loss"], SIZES),
    }


def _whole_runs(table: Table, edit: str) -> pandas.DataFrame:
    """The rows of an edit whose passes were whole, by k; none if the model has no BOS for it."""
    frame = table.frame
    return frame[(frame[EDIT] == edit) & frame[LOSS].notna()].set_index(K)


def answer_of(table: Table) -> Answer:
    """The answer that a table gives, by the rule in `docs/rules.md`."""
    before = _whole_runs(table, AS_IS)[SINK_1]
    if before.max() <= LEAST:
        return Answer.NOT_ASKED
    alone, there = (_whole_runs(table, edit)[SINK_K] for edit in (ALONE, BOS_THERE))
    by_place = (alone >= HALF * before).all()
    by_token = len(there) > 0 and (there >= HALF * before).all()
    if by_place:
        return Answer.BOTH if by_token else Answer.PLACE
    return Answer.TOKEN if by_token and alone.max() <= LEAST else Answer.NEITHER


def within_an_interval(table: Table) -> list[int]:
    """The k where half of Sink_1 lies within the interval of Sink_k, with the mask or as BOS: means decide there."""
    half, unsure = HALF * _whole_runs(table, AS_IS)[SINK_1], set[int]()
    for rows in (_whole_runs(table, edit) for edit in (ALONE, BOS_THERE)):
        unsure |= {int(k) for k, row in rows.iterrows() if row[low_of(SINK_K)] <= half[k] <= row[high_of(SINK_K)]}
    return sorted(unsure)


def depth_of(table: Table) -> tuple[int | None, int | None]:
    """The smallest d whose layers 0 to d make half of what all layers make, mean over k; and the largest of d to last.

    None where all layers make no sink.
    """
    whole = _whole_runs(table, ALONE)
    goal = HALF * whole[SINK_K].mean()
    if goal <= HALF * LEAST:
        return None, None
    rates = table.where(**{EDIT: ALONE}).frame.groupby([FIRST, LAST])[SINK_K].mean()
    enough, (start, end) = rates[rates >= goal].index, whole[[FIRST, LAST]].iloc[0]
    early, late = [last for first, last in enough if first == start], [first for first, last in enough if last == end]
    return int(min(early)), int(max(late))


def sentence_of(name: str, table: Table, tried: Sequence[int] = ()) -> str:
    """The answer in a sentence, with its numbers. tried: the depths d, if they are not all."""
    answer, (early, late) = answer_of(table), depth_of(table)
    before, has_bos = _whole_runs(table, AS_IS)[SINK_1], len(_whole_runs(table, BOS_THERE)) > 0
    places = ", ".join(map(str, before.index))

    def percents(edit: str) -> str:
        return ", ".join(f"{rate:.1%}" for rate in _whole_runs(table, edit)[SINK_K])

    words = f"{name}: the sink is {answer}. Sink_1 is {before.iloc[0]:.1%}. Sink_k (k = {places}) is "
    words += f"{percents(ALONE)} where token k sees itself alone, {percents(ONE_MORE)} where it sees one token more"
    words += f", and {percents(BOS_THERE)} where it is BOS behind another token" if has_bos else ""
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
    rows = table.where(**{EDIT: ALONE}).records()
    whole = {row[by]: (row[FIRST], row[LAST]) for row in rows if row[LOSS] is not None}
    control = {row[by]: row[SINK_K] for row in table.where(**{EDIT: ONE_MORE}).records()}
    lines: dict[tuple[Cell, int], dict[str, Cell]] = {}
    for row in rows:
        start, end = whole[row[by]]
        depths = zip(panels, (row[FIRST] == start, row[LAST] == end), (row[LAST], row[FIRST]), strict=True)
        for panel, depth in ((panel, depth) for panel, is_here, depth in depths if is_here):
            empty = {by: row[by], "d": depth, **no_estimate(panels[0]), **no_estimate(panels[1])}
            cells = lines.setdefault((row[by], depth), empty)
            cells |= {panel: row[SINK_K], low_of(panel): row[low_of(SINK_K)], high_of(panel): row[high_of(SINK_K)]}
            cells |= {f"control {each}": control[row[by]] for each in panels if by == K}
    drawn = sorted(lines.items(), key=lambda line: line[0][1])
    return sweep_figure(Table.of(table.title, table.note, [cells for _, cells in drawn]), "d", panels, by=by)
