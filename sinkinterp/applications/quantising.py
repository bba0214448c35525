"""Integers of few bits: what rounding residuals, weights and caches loses, with and without outliers of its scale."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import chain, product
from operator import itemgetter
from typing import Any, ClassVar, cast

import plotly.graph_objects as go
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..attention import AttentionCall, Edit, ModelShape, Residual, numbers
from ..backends.anatomy import LinearMap, linear_maps
from ..backends.attached import used_alone
from ..backends.huggingface import HuggingFaceSubject
from ..checks import InputError, instance_of, whole_number, whole_numbers
from ..data.progress import Progress, reported, silent
from ..data.tokens import TokensLike
from ..interventions.changes import ChangeResidual
from ..interventions.selectors import check_chosen, store_chosen
from ..measurement.measure import ModelLike, equal_inputs_of, run_note
from ..measurement.patching import activations
from ..measurement.quantities import TokenLosses, token_losses
from ..metrics.estimates import SIZES, intervals, mean_cells
from ..plots.theme import sweep_figure, unique_values
from ..spec import Limits
from ..table import ADDED, Cell, Table, high_of
from .outliers import Mask

LEFT_OUT, WHAT, ERROR = "left out", "quantised", "relative error"
DIGITS = "later blocks carry on what the last digits of a number round to: few texts differ between machines"
BITS = (8, 4)
GRAINS = {"tensor": (-2, -1), "token": (-1,), "channel": (-2,)}  # of activations `pos d_model`, each text by itself
SIDES = {"tensor": (-2, -1), "channel": (-1,)}  # of weights `row column`
NOTHING, TOKENS, DIMS, BOTH = "nothing", "outlier tokens", "outlier dimensions", "both"
RANDOM_TOKENS, RANDOM_DIMS = "random tokens", "random dimensions"
Left = Callable[[int, Residual], Bool[Tensor, "#batch #pos #d_model"]]  # what is left out, by block
Way = tuple[int, tuple[str, tuple[int, ...]], str]  # bits, a name and its axes, what is left out
Quantised = Callable[[int, tuple[int, ...], Left], tuple[Float[Tensor, " sample"], TokenLosses]]  # error and loss


def nothing(block: int, x: Residual) -> Bool[Tensor, "1 1 1"]:
    """No entry is left out."""
    return torch.zeros(1, 1, 1, dtype=torch.bool, device=x.device)


def left_out(mask: Mask) -> dict[str, Left]:
    """The entries that can be left out, by name: each kind of outlier, and the same number at random."""

    def tokens(block: int, x: Residual) -> Tensor:
        return ~mask.keep(block)(x)[..., None]

    def dims(block: int, x: Residual) -> Tensor:
        return torch.isin(torch.arange(x.shape[-1]), torch.tensor(mask.dims[block]))[None, None].to(x.device)

    return {
        NOTHING: nothing,
        TOKENS: tokens,
        RANDOM_TOKENS: lambda block, x: others(tokens(block, x), -2, block),
        DIMS: dims,
        RANDOM_DIMS: lambda block, x: others(dims(block, x), -1, block),
        BOTH: lambda block, x: tokens(block, x) | dims(block, x),
    }


def worth_trying(mask: Mask) -> list[str]:
    """The names of what can be left out: without outliers in any block, there is nothing."""
    tokens = [TOKENS, RANDOM_TOKENS] if mask.tokens.any() else []
    dims = [DIMS, RANDOM_DIMS] if any(mask.dims) else []
    return [NOTHING, *tokens, *dims, *([BOTH] if tokens and dims else [])]


def others(chosen: Bool[Tensor, "*axes"], axis: int, seed: int = 0) -> Bool[Tensor, "*axes"]:
    """Draws as many unchosen places along an axis as were chosen; all of them if there are fewer."""
    draws = torch.rand(chosen.shape, generator=torch.Generator().manual_seed(seed)).to(chosen.device)
    order = draws.masked_fill(chosen, 2).argsort(axis).argsort(axis)
    return (order < chosen.sum(axis, keepdim=True)) & ~chosen


def fake_quantised(
    x: Float[Tensor, "*stack row column"],
    bits: int,
    over: tuple[int, ...],
    kept: Bool[Tensor, "..."] = torch.tensor(False),
) -> Float[Tensor, "*stack row column"]:
    """x rounded to `bits`-bit integers: symmetric, one scale over the axes `over`, from the largest magnitude.

    The scale is computed in fp32, or wider, whatever the precision of x. Entries that are `kept` stay as they are, and
    do not count for the scale.
    """
    numbers(x, "... row column", "what is quantised")
    levels = 2 ** (whole_number(bits, "bits of a symmetric integer", 2, 32) - 1) - 1
    if not over or not all(type(axis) is int and -x.ndim <= axis < x.ndim for axis in over):
        raise InputError(f"over names axes of {tuple(x.shape)}, such as (-1,); got {over}")
    kept = instance_of(kept, Tensor, "kept is a tensor of bool, True where a number stays").to(x.device)
    wide = x.to(torch.promote_types(x.dtype, torch.float32)).masked_fill(kept, 0)
    scale = wide.abs().amax(over, keepdim=True).clamp(min=torch.finfo(wide.dtype).tiny) / levels
    return torch.where(kept, x, ((wide / scale).round().clamp(-levels, levels) * scale).to(x.dtype))


@dataclass(frozen=True)
class Quantise(Edit):
    """Rounds the residual stream before every block and after the last to `bits` bits, but for what `left` says.

    over: the axes that have one scale.
    """

    limits: ClassVar[Limits] = {"bits": (2, 32)}

    bits: int
    over: tuple[int, ...]
    left: Left

    def residual(self, block: int, x: Residual) -> Residual:
        return fake_quantised(x, self.bits, self.over, self.left(block, x))


def activations_table(subject: ModelLike, tokens: TokensLike | Any, mask: Mask, progress: Progress = silent) -> Table:
    """Error and added loss where the inputs of all blocks and of the last norm are quantised.

    A row for the bits, the grain and what is left out. The error is relative, squared, of tokens and dimensions that
    are not outliers, mean over blocks; of activations that are not quantised before.
    """
    subject, tokens = equal_inputs_of(subject, tokens)
    instance_of(mask, Mask, "a mask is what si.mask(model, tokens) returns")
    x = {block: here.cpu().float() for block, here in activations(ChangeResidual(), subject, tokens).items()}

    def quantised(bits: int, over: tuple[int, ...], left: Left) -> tuple[Tensor, TokenLosses]:
        edit = Quantise(bits, over, left)
        return relative_error(x, edit, left_out(mask)[BOTH]), token_losses(subject, tokens, [edit])

    ways = reported([*product(BITS, GRAINS.items(), worth_trying(mask))], progress, "quantising activations")
    full = token_losses(subject, tokens)
    what = f"inputs of all blocks and of the last norm, scales of each text; {DIGITS}"
    return _quantised("What does quantising activations lose?", what, mask, ways, full, quantised)


def weights_table(subject: ModelLike, tokens: TokensLike | Any, mask: Mask, progress: Progress = silent) -> Table:
    """Error and added loss where the linear maps of all blocks are quantised.

    Outlier dimensions leave out the columns of all maps that have d_model of them, which may be the attention's output
    map too. Raises InputError where no block has a map whose weights are floating-point numbers.
    """
    given, tokens = equal_inputs_of(subject, tokens)
    subject = cast(HuggingFaceSubject, given)  # every backend has the modules of transformers
    instance_of(mask, Mask, "a mask is what si.mask(model, tokens) returns")
    size = sum(one.weight.numel() for _, one in _maps(subject))
    share = size / sum(weight.numel() for block in subject.modules.blocks for weight in block.parameters())

    def quantised(bits: int, over: tuple[int, ...], left: Left) -> tuple[Tensor, TokenLosses]:
        with quantised_weights(subject, bits, over, left) as error:
            return torch.tensor([error]), token_losses(subject, tokens)

    names = [name for name in worth_trying(mask) if name in (NOTHING, DIMS, RANDOM_DIMS)]
    ways = reported([*product(BITS, SIDES.items(), names)], progress, "quantising weights")
    full = token_losses(subject, tokens)
    what = f"linear maps of all blocks, {share:.1%} of their parameters; channel: a row"
    return _quantised("What does quantising weights lose?", what, mask, ways, full, quantised)


@contextmanager
def quantised_weights(subject: HuggingFaceSubject, bits: int, over: tuple[int, ...], left: Left) -> Iterator[float]:
    """In the block, the linear maps of all blocks compute with quantised weights; no weight of the model is written.

    Yields the relative squared error, mean over maps. The matrices of experts have a scale each. Raises InputError
    where no map is found, or where weights are computed or offloaded.
    """
    with used_alone(subject.model), torch.no_grad(), ExitStack() as stack:
        maps, errors = _maps(subject), []
        for block, one in maps:
            rounded, error = _quantised_map(one.weight, bits, over, left, (block, subject.shape.d_model))
            stack.enter_context(one.replaced(rounded))
            errors.append(error)
        yield sum(errors) / len(errors)


def _maps(subject: HuggingFaceSubject) -> list[tuple[int, LinearMap]]:
    """The block and every linear map of it. Raises InputError where there is none, and as `linear_maps` does."""
    maps = [(i, one) for i, block in enumerate(subject.modules.blocks) for one in linear_maps(block)]
    if not maps:
        what = "a linear map whose weights are floating-point numbers"
        raise InputError(f"no block of {subject.name} has {what}")
    return maps


def _quantised_map(
    weight: Tensor, bits: int, over: tuple[int, ...], left: Left, where: tuple[int, int]
) -> tuple[Tensor, float]:
    """The rounded weights of a map, and their relative squared error, computed in fp32.

    where: the block and d_model; maps with so many columns keep those of the dimensions that are left out.
    """
    block, d_model = where
    before = weight.float()
    kept = left(block, before.new_zeros(1, 1, d_model))[0] if weight.shape[-1] == d_model else torch.tensor(False)
    rounded = fake_quantised(before, bits, over, kept)
    return rounded.to(weight.dtype), ((rounded - before).square().sum() / before.square().sum()).item()


def relative_error(x: Mapping[int, Residual], edit: Quantise, outlier: Left = nothing) -> Float[Tensor, " sequence"]:
    """The squared error of each text over the square of what is quantised, mean over blocks, outliers not counted."""
    found = []
    for block, here in x.items():
        ordinary = ~outlier(block, here)
        change = (edit.residual(block, here) - here) * ordinary
        found.append(change.square().sum((1, 2)) / (here * ordinary).square().sum((1, 2)))
    return torch.stack(found).mean(0)


def _quantised(
    title: str, what: str, mask: Mask, ways: Iterable[Way], full: TokenLosses, quantised: Quantised
) -> Table:
    """A row for each way to quantise; `full` is the loss without."""
    rows = []
    for bits, (grain, over), name in ways:
        error, loss = quantised(bits, over, left_out(mask)[name])
        cells = mean_cells(ERROR, error, SIZES) | mean_cells(ADDED, (loss - full).mean(1))
        rows.append({WHAT: f"int{bits} per {grain}", LEFT_OUT: name, **cells})
    note = (
        f"{mask.note}; {what}; symmetric, scale from the largest magnitude; relative error: of squares; "
        f"added loss in nats a token; "
        f"control: as many random ones left out; null: 0, nothing quantised; {intervals(len(full))}"
    )
    return Table.of(title, note, tuple(rows), quantisation_figure)


def quantisation_figure(table: Table) -> go.Figure:
    """Error and added loss: a colour for what is left out, a line for every way to quantise."""
    figure = sweep_figure(table, WHAT, (ERROR, ADDED), by=LEFT_OUT)
    figure.update_layout(showlegend=table.frame[LEFT_OUT].nunique() > 1)
    return figure.update_xaxes(type="log", exponentformat="power", dtick=1, col=1)


# Keys and values

N_BITS, SCALES, ROUNDED, CHANGE = "bits", "one scale for each", "rounded tokens", "above all rounded"
CACHE = "cache"
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


CACHE_GRAINS: dict[str, tuple[Scales, Scales]] = {  # of keys, and of values
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


def cache_table(
    subject: ModelLike, tokens: TokensLike | Any, bits: Sequence[int] = (8, 4, 2), progress: Progress = silent
) -> Table:
    """The loss that a quantised cache adds: a row for the bits, what shares a scale, and which tokens are rounded.

    Keys are rounded as a cache holds them, after rotation. The control rounds all but the second token. Raises
    InputError for fewer than 2 bits, and more than 32, and for a model that caches no keys and values but a latent.
    """
    subject, tokens = equal_inputs_of(subject, tokens)
    bits = tuple(dict.fromkeys(whole_numbers(bits, "bits", 2, 32)))
    if getattr(subject.model.config, "kv_lora_rank", None):
        raise InputError(f"{subject.name} caches a latent, not keys and values")
    rows: list[dict[str, Cell]] = []
    full, all_rounded = token_losses(subject, tokens), torch.empty(0)
    ways = [*product(bits, CACHE_GRAINS, SPARED)]
    for n, scales, name in reported(ways, progress, "quantising the cache"):
        added = (token_losses(subject, tokens, [RoundedCache(n, *CACHE_GRAINS[scales], SPARED[name])]) - full).mean(1)
        all_rounded = added if name == ALL else all_rounded
        change = mean_cells(CHANGE, added - all_rounded)
        rows.append({N_BITS: n, SCALES: scales, ROUNDED: name, **mean_cells(ADDED, added), **change})
    note = (
        f"{run_note(subject, tokens)}; {intervals(len(tokens))}; nats a token; null: 0, the full cache; scales of "
        "each text, symmetric where nothing else is said; control: the second token is not rounded; "
        f"{CHANGE}: paired, text by text; {DIGITS}"
    )
    return Table.of("What does a quantised cache lose?", note, tuple(rows), cache_figure)


def cache_figure(table: Table) -> go.Figure:
    """The added loss of every way to round, a colour for which tokens are rounded, and the paired difference."""
    named = table.with_rows({CACHE: f"int{row[N_BITS]}, {row[SCALES]}", **row} for row in table.records())
    return sweep_figure(named, CACHE, (ADDED, CHANGE), by=ROUNDED)


def cache_answer(table: Table) -> str:
    """The cost of rounding to every number of bits with the best scales, and the gain of sparing the first token."""
    costs, gains = [], []
    for bits in unique_values(table, N_BITS):
        of = [table.where(**{N_BITS: bits, ROUNDED: tokens}) for tokens in (ALL, BUT_FIRST)]
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
