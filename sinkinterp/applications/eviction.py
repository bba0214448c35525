"""Smaller caches: what they lose without first tokens, in each head, and by rounding."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, product
from math import isfinite
from operator import itemgetter
from typing import ClassVar

import plotly.graph_objects as go
import torch
from jaxtyping import Bool, Float
from plotly.colors import sample_colorscale
from torch import Tensor

from ..attention import AttentionCall, Edit, ModelShape
from ..backends.huggingface import HuggingFaceSubject
from ..checks import InputError, different_numbers, finite_number, whole_number, whole_numbers
from ..data.progress import Progress, reported, silent
from ..data.tokens import Tokens
from ..interventions.attention_layers import Evict, First, KeepHeaviest
from ..interventions.selectors import check_chosen, store_chosen
from ..measurement.measure import answers_of, reads_inputs, run_note
from ..metrics.estimates import Estimate, estimate, intervals, mean_cells
from ..metrics.metric import PerSequence
from ..plots.theme import LIGHT, heat_map, sweep_figure, themed, unique_values
from ..spec import Limits
from ..table import HEAD, LAYER, Cell, Table, high_of
from .outliers import DIGITS, fake_quantised
from .streaming import ADDED, CACHE, check_window, loss_of

FIRST_TOKENS = (0, 1, 2, 4, 8)
KEPT, WINDOW, FEWEST = "first tokens kept", "window", "fewest first tokens"
CONTROL = "control added loss"
NATS = "nats a token after eviction begins"
ENOUGH = 0.01  # nats a token that more first tokens may still gain


@dataclass(frozen=True)
class Losses:
    """The loss that every cache adds, by window and first tokens kept.

    added, control: of each text, in nats a token above the full cache, after eviction has begun. The control has kept
    as many random tokens.
    """

    added: dict[tuple[int, int], PerSequence]
    control: dict[tuple[int, int], PerSequence]
    note: str

    def table(self) -> Table:
        """One row per window and number of first tokens."""
        rows = []
        for (window, n), added in self.added.items():
            cells = mean_cells(ADDED, added) | mean_cells(CONTROL, self.control[window, n])
            rows.append({WINDOW: window, KEPT: n, **cells})
        note = f"{self.note}; {NATS}; null: 0, the full cache; control: as many random tokens kept, not the first"
        return Table.of("What does a cache lose without its first tokens?", note, tuple(rows), losses_figure)

    def answer(self) -> str:
        """How many first tokens to keep, in one sentence: the fewest beside which more gain less than `ENOUGH`.

        It says so where the texts do not tell: their interval includes no gain at all, or a gain of every more tokens.
        """
        window = max(window for window, _ in self.added)
        by_kept = {n: added for (w, n), added in self.added.items() if w == window}
        fewest, likely = _fewest(by_kept, is_sure=True), _fewest(by_kept, is_sure=False)
        texts, most = len(by_kept[0]), max(by_kept)
        kept = likely if fewest == most else fewest  # nothing was tried that could reject the most
        said = "1 first token" if kept == 1 else f"{kept or 'no'} first tokens"
        costs = self._costs(window, kept)
        if texts < 2 or kept < fewest or (kept and estimate(by_kept[0] - by_kept[kept]).low <= 0):
            who = f"These {texts} texts do" if texts > 1 else "One text does"
            return f"{who} not tell; give more. With {said} {costs}."
        if kept == most:
            return f"Keep {said}, or more, which were not tried: {costs}."
        fewer = f" By the means alone {likely} will do; these texts do not exclude more." if likely < kept else ""
        return f"Keep {said}: {costs}; more first tokens gain less than {ENOUGH:g}.{fewer}"

    def _costs(self, window: int, kept: int) -> str:
        there, none = (estimate(self.added[window, n]) for n in (kept, 0))
        costs = f"a window of {window} then adds {there} nats a token to the loss of the full cache"
        return f"{costs}, and without any {none}" if kept else costs


@reads_inputs
def first_token_losses(
    subject: HuggingFaceSubject,
    tokens: Tokens,
    windows: Sequence[int],
    kept: Sequence[int] = FIRST_TOKENS,
    progress: Progress = silent,
) -> Losses:
    """The loss that a rolling cache adds to the full one, for every window and number of first tokens.

    Eviction is a mask in one pass; tokens keep the positions of the text. The control keeps as many random tokens,
    never the first. Without any first token is always tried. Raises InputError where a window evicts nothing.
    """
    kept = sorted({0, *different_numbers(kept, "kept, numbers of first tokens,", 0)})
    windows = different_numbers(windows, "windows", 1)
    for window in windows:
        check_window(tokens, window)
    full, added, control = loss_of(subject, tokens), {}, {}
    places = [(window, n) for window in windows for n in kept if n < window]
    for window, n in reported(places, progress, "evicting first tokens"):
        edits = Evict(window, n), KeepHeaviest(window, n, First.EVICTED, seed=0)
        above = [(loss_of(subject, tokens, [edit]) - full)[:, window:].mean(1) for edit in edits]
        added[window, n], control[window, n] = above
    return Losses(added, control, _note(subject, tokens))


@reads_inputs
def heads_table(
    subject: HuggingFaceSubject, tokens: Tokens, window: int, tolerance: float = 0.1, kept: Sequence[int] = FIRST_TOKENS
) -> Table:
    """The fewest first tokens with which each head's output stays within `tolerance` of that from all keys.

    The error is the length of the change over the length of the output, root mean square over the queries from
    `window` on, mean over texts. Queries, keys and values are those of the full cache. The control keeps one random
    token instead of the first.
    """
    check_window(tokens, window)
    finite_number(tolerance, "tolerance, a share of an output's length,", above=0)
    fitting = [n for n in different_numbers(kept, "kept, numbers of first tokens,", 0) if n < window]
    edits = [*(Evict(window, n) for n in fitting), KeepHeaviest(window, 1, First.EVICTED, seed=0)]
    (errors_of,) = answers_of(subject, tokens, {"errors": partial(_output_errors, edits=edits, window=window)})
    rows: list[dict[str, Cell]] = []
    for layer, heads in zip(subject.shape.attention_layers, errors_of.nanmean(0).tolist(), strict=True):
        for head, (*errors, control) in enumerate(heads):
            by_kept = dict(zip(fitting, errors, strict=True))
            fewest = next((n for n, error in by_kept.items() if error <= tolerance), None)
            cells = {f"error with {n}": error for n, error in by_kept.items()}
            rows.append({LAYER: layer, HEAD: head, FEWEST: fewest, **cells, "control error with 1": control})
    note = f"{_note(subject, tokens)}; window {window}; tolerance {tolerance:g}; control: 1 random token, not the first"
    return Table.of("How many first tokens does each head need?", note, tuple(rows), heads_figure)


def _output_errors(call: AttentionCall, edits: Sequence[Edit], window: int) -> Float[Tensor, "batch head edit"]:
    full = call.output()[..., window:, :].float()
    outputs = torch.stack([edit.call(call).output()[..., window:, :].float() for edit in edits], -3)
    return (outputs - full[..., None, :, :]).norm(dim=(-2, -1)) / full.norm(dim=(-2, -1))[..., None]


def _note(subject: HuggingFaceSubject, tokens: Tokens) -> str:
    return f"{run_note(subject, tokens)}; {intervals(len(tokens))}"


def _fewest(by_kept: Mapping[int, PerSequence], is_sure: bool) -> int:
    """The fewest first tokens beside which all that are more gain less than `ENOUGH`, in the mean.

    is_sure: at the upper end of their interval, if they have one.
    """

    def is_enough(gain: Estimate) -> bool:
        return (gain.high if is_sure and isfinite(gain.high) else gain.mean) < ENOUGH

    gains = {n: [estimate(added - by_kept[m]) for m in by_kept if m > n] for n, added in by_kept.items()}
    return min(n for n, more in gains.items() if all(map(is_enough, more)))


def needs_table(heads: Table) -> Table:
    """How many heads need how many first tokens."""
    needed = Counter("more" if n is None else str(n) for n in (row[FEWEST] for row in heads.records()))
    rows: list[dict[str, Cell]] = []
    for name in sorted(needed, key=lambda name: (len(name), name)):
        rows.append({FEWEST: name, "heads": needed[name], "share": needed[name] / needed.total()})
    return Table.of(heads.title, heads.note, tuple(rows))


def losses_figure(table: Table) -> go.Figure:
    """The added loss over the first tokens kept: a line for every window."""
    named = table.with_rows({CACHE: f"window {row[WINDOW]}", **row} for row in table.records())
    return sweep_figure(named, KEPT, (ADDED,), by=CACHE)


def heads_figure(table: Table) -> go.Figure:
    """The fewest first tokens of every head as a map: a colour for each number, and one for more than were tried."""
    counts = sorted({int(n) for n in table.frame[FEWEST].dropna()})
    names = [*map(str, counts), "more"]
    steps = {FEWEST: [len(counts) if row[FEWEST] is None else counts.index(row[FEWEST]) for row in table.records()]}
    stepped = replace(table, frame=table.frame.assign(**steps))
    ends = [i / len(names) for i in range(len(names) + 1)]
    colours = sample_colorscale(list(LIGHT.sequential), [i / max(1, len(counts)) for i in range(len(names))])
    scale = [(end, each) for i, each in enumerate(colours) for end in ends[i : i + 2]]
    bar = {"title": "first tokens", "tickvals": [*range(len(names))], "ticktext": names}
    figure = heat_map(stepped, FEWEST, zmin=-0.5, zmax=len(counts) + 0.5, colorscale=scale, colorbar=bar)
    height = 240 + max(200, 16 * len(unique_values(table, LAYER)))
    return themed(figure, table.title, height, f"{FEWEST}. {table.note}")


BITS, SCALES, ROUNDED, CHANGE = "bits", "one scale for each", "rounded tokens", "above all rounded"
ALL, BUT_FIRST, BUT_SECOND = "all", "all but the first", "all but the second"
POSITION, DIMENSION = -2, -1  # the axes of a head's keys, and of its values


@dataclass(frozen=True)
class Scales:
    """Which numbers of a head have one scale: those along `over`, or so many in a row (`group`) of its last axis.

    With `offset` the steps go from the smallest number to the largest. Without, zero is in the middle of them.
    """

    over: tuple[int, ...]
    group: int | None = None
    offset: bool = False

    def __post_init__(self) -> None:
        if self.over not in ((POSITION,), (DIMENSION,), (POSITION, DIMENSION)):
            raise InputError(f"scales are over positions (-2,), dimensions (-1,) or both (-2, -1); got {self.over!r}")
        if self.group is not None:
            whole_number(self.group, "group", 1)

    def rounded(
        self, x: Float[Tensor, "batch kv_head pos d"], kept: Bool[Tensor, "pos one"], bits: int
    ) -> Float[Tensor, "batch kv_head pos d"]:
        """`x` in integers of `bits` bits. Kept positions stay as they are, and share no scale with the others."""
        rounds = _from_the_smallest if self.offset else fake_quantised
        kept, axis = kept.expand(x.shape), self.over[-1]
        pieces = zip(*(every.split(self.group or x.shape[axis], axis) for every in (x, kept)), strict=True)
        return torch.cat([rounds(part, bits, self.over, still) for part, still in pieces], axis)


def _from_the_smallest(x: Tensor, bits: int, over: tuple[int, ...], kept: Tensor) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    low = wide.masked_fill(kept, torch.inf).amin(over, keepdim=True)
    high = wide.masked_fill(kept, -torch.inf).amax(over, keepdim=True)
    step = (high - low).clamp(min=torch.finfo(wide.dtype).tiny) / (2**bits - 1)
    return torch.where(kept, x, (((wide - low) / step).round() * step + low).to(x.dtype))


GRAINS: dict[str, tuple[Scales, Scales]] = {  # of keys, and of values
    "head": (Scales((POSITION, DIMENSION)), Scales((POSITION, DIMENSION))),
    "token": (Scales((DIMENSION,)), Scales((DIMENSION,))),
    "channel of keys, token of values": (Scales((POSITION,)), Scales((DIMENSION,))),
    "group of 32, with an offset": (Scales((POSITION,), 32, True), Scales((DIMENSION,), 32, True)),  # arXiv:2402.02750
}
SPARED: dict[str, tuple[int, ...] | None] = {ALL: None, BUT_FIRST: (0,), BUT_SECOND: (1,)}


@dataclass(frozen=True)
class RoundedCache(Edit):
    """Rounds the keys and values of every head, but those of the tokens at `kept`, which share no scale either.

    A model that caches something else, such as a latent of both (multi-head latent attention), rounds something else.
    """

    limits: ClassVar[Limits] = {"bits": (2, 32)}

    bits: int
    keys: Scales
    values: Scales
    kept: Iterable[int] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        store_chosen(self, "kept")

    def check(self, shape: ModelShape, length: int) -> None:
        check_chosen(self.kept, range(length), "position")

    def call(self, call: AttentionCall) -> AttentionCall:
        kept = torch.zeros(call.k.shape[POSITION], 1, dtype=torch.bool, device=call.k.device)
        kept[list(self.kept or ())] = True
        k, v = (by.rounded(x, kept, self.bits) for by, x in ((self.keys, call.k), (self.values, call.v)))
        return replace(call, k=k, v=v)


@reads_inputs
def quantised_table(
    subject: HuggingFaceSubject, tokens: Tokens, bits: Sequence[int] = (8, 4, 2), progress: Progress = silent
) -> Table:
    """The loss that a quantised cache adds: a row for the bits, what shares a scale, and which tokens are rounded.

    Keys are rounded as a cache holds them, after rotation. The control rounds all but the second token. Raises
    InputError for fewer than 2 bits, and more than 32, and for a model that caches no keys and values but a latent.
    """
    bits = tuple(dict.fromkeys(whole_numbers(bits, "bits", 2, 32)))
    if getattr(subject.model.config, "kv_lora_rank", None):
        raise InputError(f"{subject.name} caches a latent, not keys and values")
    rows: list[dict[str, Cell]] = []
    full, all_rounded = loss_of(subject, tokens), torch.empty(0)
    ways = [*product(bits, GRAINS, SPARED)]
    for n, scales, name in reported(ways, progress, "quantising the cache"):
        added = (loss_of(subject, tokens, [RoundedCache(n, *GRAINS[scales], SPARED[name])]) - full).mean(1)
        all_rounded = added if name == ALL else all_rounded
        change = mean_cells(CHANGE, added - all_rounded)
        rows.append({BITS: n, SCALES: scales, ROUNDED: name, **mean_cells(ADDED, added), **change})
    note = (
        f"{run_note(subject, tokens)}; {intervals(len(tokens))}; nats a token; null: 0, the full cache; scales of "
        "each text, symmetric where nothing else is said; control: the second token is not rounded; "
        f"{CHANGE}: paired, text by text; {DIGITS}"
    )
    return Table.of("What does a quantised cache lose?", note, tuple(rows), quantised_figure)


def quantised_figure(table: Table) -> go.Figure:
    """The added loss of every way to round, a colour for which tokens are rounded, and the paired difference."""
    named = table.with_rows({CACHE: f"int{row[BITS]}, {row[SCALES]}", **row} for row in table.records())
    return sweep_figure(named, CACHE, (ADDED, CHANGE), by=ROUNDED)


def quantised_answer(table: Table) -> str:
    """The cost of rounding to every number of bits with the best scales, and the gain of sparing the first token."""
    costs, gains = [], []
    for bits in unique_values(table, BITS):
        of = [table.where(**{BITS: bits, ROUNDED: tokens}) for tokens in (ALL, BUT_FIRST)]
        best = min(chain.from_iterable(rows.records() for rows in of), key=itemgetter(ADDED))[SCALES]
        rounded, spared = (rows.where(**{SCALES: best}) for rows in of)
        gains += spared.numbers(high_of(CHANGE))
        change = f"; to leave the first token as it is changes that by {spared.texts()[0][CHANGE]}"
        change = change if gains[-1] < 0 else ""
        costs.append(f"{rounded.texts()[0][ADDED]} at {bits} bits (one scale for each {best}{change})")
    *firsts, last = costs
    listed = f"{', '.join(firsts)} and {last}" if firsts else last
    said = f"Rounded keys and values add, in nats a token and with the best scales, {listed}."
    nothing = " To leave the first token as it is gains nothing that these texts show."
    return said + nothing * all(high >= 0 for high in gains)
