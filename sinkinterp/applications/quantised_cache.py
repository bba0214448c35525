"""The loss of a cache whose keys and values are quantised, and the gain of leaving the first token as it is."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from operator import itemgetter
from typing import ClassVar

import plotly.graph_objects as go
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..attention.call import AttentionCall
from ..attention.shapes import ModelShape
from ..attention.sites import Edit
from ..backends.huggingface import HuggingFaceSubject
from ..checks import whole_number, whole_numbers
from ..data.progress import Progress, silent, told
from ..data.tokens import Tokens
from ..errors import InputError
from ..interventions.selectors import check_chosen, store_chosen
from ..measurement.inputs import reads_inputs, run_note
from ..metrics.bootstrap import intervals, mean_cells
from ..plots.series import sweep_figure
from ..spec import Limits
from ..table import Cell, Table, high_of
from .streaming import ADDED, CACHE, loss_of
from .without_outliers import DIGITS, fake_quantised

BITS, SCALES, ROUNDED, CHANGE = "bits", "one scale for each", "rounded tokens", "above all rounded"
ALL, BUT_FIRST, BUT_SECOND = "all", "all but the first", "all but the second"
POSITION, DIMENSION = -2, -1  # the axes of a head's keys, and of its values


@dataclass(frozen=True)
class Scales:
    """Which numbers of a head have one scale: those along `over`, or so many in a row (`group`) of its last axis.

    With `offset` the steps go from the smallest number to the largest; without, they are as many on both sides of zero.
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
        ways = _from_the_smallest if self.offset else _around_zero
        kept, axis = kept.expand(x.shape), self.over[-1]
        pieces = zip(*(every.split(self.group or x.shape[axis], axis) for every in (x, kept)), strict=True)
        return torch.cat([torch.where(still, part, ways(part, still, bits, self.over)) for part, still in pieces], axis)


def _around_zero(x: Tensor, kept: Tensor, bits: int, over: tuple[int, ...]) -> Tensor:
    return fake_quantised(x.masked_fill(kept, 0), bits, over)


def _from_the_smallest(x: Tensor, kept: Tensor, bits: int, over: tuple[int, ...]) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    low = wide.masked_fill(kept, torch.inf).amin(over, keepdim=True)
    high = wide.masked_fill(kept, -torch.inf).amax(over, keepdim=True)
    step = (high - low).clamp(min=torch.finfo(wide.dtype).tiny) / (2**bits - 1)
    return (((wide - low) / step).round() * step + low).to(x.dtype)


GRAINS: dict[str, tuple[Scales, Scales]] = {  # of keys, and of values
    "head": (Scales((POSITION, DIMENSION)), Scales((POSITION, DIMENSION))),
    "token": (Scales((DIMENSION,)), Scales((DIMENSION,))),
    "channel of keys, token of values": (Scales((POSITION,)), Scales((DIMENSION,))),
    "group of 32, with an offset": (Scales((POSITION,), 32, True), Scales((DIMENSION,), 32, True)),  # arXiv:2402.02750
}
KEPT: dict[str, tuple[int, ...] | None] = {ALL: None, BUT_FIRST: (0,), BUT_SECOND: (1,)}


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
        fix = "RoundedCache rounds the keys and values that are made of it, as an edit"
        raise InputError(f"{subject.name} caches a latent, not keys and values; take another model ({fix})")
    rows: list[dict[str, Cell]] = []
    full, all_rounded = loss_of(subject, tokens), torch.empty(0)
    for n, scales, name in told([*product(bits, GRAINS, KEPT)], progress("quantising the cache")):
        added = (loss_of(subject, tokens, [RoundedCache(n, *GRAINS[scales], KEPT[name])]) - full).mean(1)
        all_rounded = added if name == ALL else all_rounded
        change = mean_cells(CHANGE, added - all_rounded)
        rows.append({BITS: n, SCALES: scales, ROUNDED: name, **mean_cells(ADDED, added), **change})
    note = (
        f"{run_note(subject, tokens)}; {intervals(len(tokens))}; nats a token; null: 0, the full cache; scales of "
        "each text, symmetric where nothing else is said; control: the second token is not rounded; "
        f"{CHANGE}: paired, text by text; {DIGITS}"
    )
    return Table("What does a quantised cache lose?", note, tuple(rows), quantised_figure)


def quantised_figure(table: Table) -> go.Figure:
    """The added loss of every way to round, a colour for which tokens are rounded, and the paired difference."""
    named = table.with_rows({CACHE: f"int{row[BITS]}, {row[SCALES]}", **row} for row in table.rows)
    return sweep_figure(named, CACHE, (ADDED, CHANGE), by=ROUNDED)


def quantised_answer(table: Table) -> str:
    """The cost of rounding to every number of bits with the best scales, and the gain of sparing the first token."""
    costs, gains = [], []
    for bits in dict.fromkeys(table.column(BITS)):
        of = [table.where(**{BITS: bits, ROUNDED: tokens}) for tokens in (ALL, BUT_FIRST)]
        pairs = [zip(rows.numbers(ADDED), rows.column(SCALES), strict=True) for rows in of]
        _, best = min(chain(*pairs), key=itemgetter(0))
        rounded, spared = (rows.where(**{SCALES: best}) for rows in of)
        gains += spared.numbers(high_of(CHANGE))
        change = f"; to leave the first token as it is changes that by {spared.display_rows()[0][CHANGE]}"
        costs.append(
            f"{rounded.display_rows()[0][ADDED]} at {bits} bits (one scale for each {best}"
            f"{change if gains[-1] < 0 else ''})"
        )
    said = f"Rounded keys and values add, in nats a token and with the best scales, {_listed(costs)}."
    if all(high >= 0 for high in gains):
        return f"{said} To leave the first token as it is gains nothing that these texts show."
    return said


def _listed(items: Sequence[str]) -> str:
    *firsts, last = items
    return f"{', '.join(firsts)} and {last}" if firsts else last
