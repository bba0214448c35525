"""The tokens and dimensions of activations that are outliers by norm, and what leaving them out changes.

found = si.mask("gpt2", texts)
keep = found.keep(6)  # a function: activations `... d_model` -> bool `...`
found.dims[6], found.to_dict(), found.plot()

Beside as many random ones: quantisation.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import plotly.graph_objects as go
import torch
from jaxtyping import Bool, Float
from plotly.subplots import make_subplots
from torch import Tensor

from ..attention import RESIDUAL, Edit, Residual, numbers
from ..backends.anatomy import LinearMap, linear_maps
from ..backends.attached import used_alone
from ..backends.huggingface import HuggingFaceSubject
from ..backends.subject import Subject
from ..checks import InputError, check_count, finite_number, instance_of, whole_number
from ..data.progress import Progress, reported, silent
from ..data.tokens import Tokens, TokensLike
from ..interventions.changes import ChangeResidual
from ..measurement.measure import ModelLike, answers_of, equal_inputs_of, reads_inputs, run_note
from ..measurement.patching import activations
from ..metrics.estimates import SIZES, intervals, mean_cells
from ..metrics.residuals import vector_norms
from ..plots.theme import colour, sweep_figure, themed
from ..spec import Limits
from ..table import BLOCK, Table
from .streaming import Loss, loss_of

TOKENS_BY_KIND = ("first", "delimiters", "repeats", "other tokens")
FIRST, DELIMITERS, REPEATS, OTHERS = range(len(TOKENS_BY_KIND))
OUTLIER_DIMS, LONGEST = "dimensions", "longest / median"
TIMES = 10.0  # the multiple that dictionary_learning advises for its buffer of activations
Keep = Callable[[Float[Tensor, "*stack d_model"]], Bool[Tensor, "*stack"]]


@dataclass(frozen=True, eq=False, repr=False)
class Mask:
    """The outliers of every block's input; block `n_layers` is the last output.

    limits: the norm above which a token is an outlier, by block. dims: the outlier dimensions, by block. tokens: which
    tokens of the texts are outliers, `sequence block pos`. kinds: first token, delimiter, repeat or other, an index
    of `TOKENS_BY_KIND`. longest: the longest token over the median, by block.
    """

    limits: tuple[float, ...]
    dims: tuple[tuple[int, ...], ...]
    tokens: Bool[Tensor, "sequence block pos"]
    kinds: Tensor
    longest: tuple[float, ...]
    times: float
    note: str
    d_model: int

    def __repr__(self) -> str:
        return f"<Mask of {len(self.limits)} blocks: {int(self.tokens.sum())} outlier tokens of {self.tokens.numel()}>"

    def keep(self, block: int) -> Keep:
        """The function that says which activations of a block to keep, for tensors of any leading shape."""
        limit = self.limits[whole_number(block, "a block", 0, len(self.limits) - 1)]

        def keep(x: Float[Tensor, "*stack d_model"]) -> Bool[Tensor, "*stack"]:
            if numbers(x, "... d_model", "activations").shape[-1] != self.d_model:
                raise InputError(f"activations of this model have {self.d_model} dimensions; got {tuple(x.shape)}")
            return x.float().norm(dim=-1) <= limit

        return keep

    def answer(self) -> str:
        """Returns what to leave out, in two sentences."""
        blocks = [i for i in range(len(self.limits)) if self.tokens[:, i].any()]
        found = self.tokens[:, blocks]
        first = found[:, :, 0].sum().item() / max(1, int(found.sum()))
        tokens = f"tokens of {len(blocks)} of {len(self.limits)} blocks, {first:.1%} of them first tokens"
        all_dims = sorted({dim for dims in self.dims for dim in dims})
        dims = f"dimensions {_some(all_dims)}, each in some blocks"
        return (
            f"Leave out {tokens if blocks else 'no tokens'}. Leave out {dims if all_dims else 'no dimensions'}. "
            f"Outliers are longer than {self.times:g} medians."
        )

    def table(self) -> Table:
        """The share of the tokens of every kind that are outliers, and the outlier dimensions, by block."""
        rows = []
        of_kind = {kind: self.kinds == i for i, kind in enumerate(TOKENS_BY_KIND)}
        for block, dims in enumerate(self.dims):
            found = {kind: self.tokens[:, block][where].float() for kind, where in of_kind.items()}
            shares = {kind: x.mean().item() if len(x) else None for kind, x in found.items()}
            rows.append({BLOCK: block, **shares, LONGEST: self.longest[block], OUTLIER_DIMS: _some(dims)})
        return Table.of("Which tokens and dimensions are outliers?", self.note, tuple(rows), outliers_figure)

    def to_dict(self) -> dict[str, Any]:
        """JSON for quantisers and caches: by block, the limit of norms, the outlier tokens and dimensions."""
        blocks = [
            {"block": i, "largest_norm": limit, "dims": list(dims), "tokens": self.tokens[:, i].nonzero().tolist()}
            for i, (limit, dims) in enumerate(zip(self.limits, self.dims, strict=True))
        ]
        return {"times": self.times, "note": self.note, "blocks": blocks}

    def plot(self) -> go.Figure:
        """The figure of `table`."""
        return self.table().plot()


def _some(dims: Sequence[int], most: int = 8) -> str:
    """The first dimensions, and how many more there are."""
    return " ".join(map(str, dims[:most])) + (f" and {len(dims) - most} more" if len(dims) > most else "")


def norm_limit(norms: Float[Tensor, "..."], times: float = TIMES) -> float:
    """The norm beyond which one is an outlier: `times` the median, the lower of two middle ones.

    The rule of dictionary_learning's ActivationBuffer (max_activation_norm_multiple). Raises InputError for a
    multiple of 1 or less, and without norms.
    """
    finite_number(times, "times, a multiple of the median norm,", above=1)
    given = numbers(norms, "...", "norms").float().flatten()
    check_count(given, "norms of tokens")
    return times * given.median().item()


def mask(model: ModelLike, tokens: TokensLike | Any = None, *, times: float = TIMES) -> Mask:
    """The tokens and dimensions of every block whose norm exceeds `times` the median.

    A token's norm is over dimensions, its median over all tokens of the block (the rule of dictionary_learning); a
    dimension's is over all tokens, its median over dimensions. Raises InputError as `measure` does, for sequences of
    different lengths, and unless `times` exceeds 1.
    """
    subject, given = equal_inputs_of(model, tokens)
    reads = {"norms": RESIDUAL.read(vector_norms), "energy": RESIDUAL.read(lambda x: x.float().square().mean(1))}
    norms, energy = (answer.cpu() for answer in answers_of(subject, given, reads))  # sequence block pos, or d_model
    sizes = energy.mean(0).sqrt()
    limits = tuple(norm_limit(norms[:, i], times) for i in range(norms.shape[1]))
    dims = tuple(tuple((size > norm_limit(size, times)).nonzero()[:, 0].tolist()) for size in sizes)
    delimiters = "not told from others without a tokenizer" if subject.tokenizer is None else "no letter or digit"
    note = (
        f"{run_note(subject, given)}; outlier: norm above {times:g} x the median of the block; "
        f"delimiter: {delimiters}; repeat: the token occurred before; block 0 is the embedding"
    )
    found = norms > torch.tensor(limits)[:, None]
    longest = tuple((norms.amax((0, 2)) * times / torch.tensor(limits)).tolist())
    return Mask(limits, dims, found, _kinds(subject, given.cpu()), longest, times, note, subject.shape.d_model)


def _kinds(subject: Subject, tokens: Tokens) -> Tensor:
    """Returns what kind each token is, `sequence pos`."""
    word = subject.label
    bare = [i for i in tokens.unique().tolist() if not any(map(str.isalnum, word(i)))]
    repeats = torch.stack([(ids[:, None] == ids).tril(-1).any(1) for ids in tokens])
    kinds = torch.where(repeats, REPEATS, OTHERS)
    kinds[torch.isin(tokens, torch.tensor(bare, dtype=tokens.dtype))] = DELIMITERS
    kinds[:, 0] = FIRST
    return kinds


def outliers_figure(table: Table) -> go.Figure:
    """Outlier tokens of every kind, and how long the longest token is, by block."""
    x, kinds = table.frame[BLOCK].tolist(), [kind for kind in TOKENS_BY_KIND if any(table.numbers(kind))]
    longest = f"{LONGEST}: at most {max(table.numbers(LONGEST)):.1f}, so no token is an outlier"
    titles = ("outlier tokens, share of the kind", LONGEST) if kinds else (longest,)
    figure = make_subplots(1, len(titles), subplot_titles=titles)
    for kind in kinds:
        marker = {"color": colour(TOKENS_BY_KIND.index(kind))}
        figure.add_bar(x=x, y=table.numbers(kind), name=kind, marker=marker, row=1, col=1)
    if kinds:
        figure.update_yaxes(tickformat=".0%", range=[0, 1.03], col=1)
    last = len(titles)
    figure.add_scatter(x=x, y=table.numbers(LONGEST), name=LONGEST, line={"color": colour(4)}, row=1, col=last)
    figure.update_xaxes(title="block (0: embedding)", dtick=max(1, len(x) // 10))
    figure.update_yaxes(type="log", exponentformat="power", col=last)
    return themed(figure, table.title, 440, table.note)


_WHAT = "a mask is what si.mask(model, tokens) returns"
LEFT_OUT = "left out"
DIGITS = "later blocks carry on what the last digits of a number round to: few texts differ between machines"
WHAT, ERROR, ADDED = "quantised", "relative error", "added loss"

BITS = (8, 4)
GRAINS = {"tensor": (-2, -1), "token": (-1,), "channel": (-2,)}  # of activations `pos d_model`, each text by itself
SIDES = {"tensor": (-2, -1), "channel": (-1,)}  # of weights `row column`
NOTHING, TOKENS, DIMS, BOTH = "nothing", "outlier tokens", "outlier dimensions", "both"
RANDOM_TOKENS, RANDOM_DIMS = "random tokens", "random dimensions"
Left = Callable[[int, Residual], Bool[Tensor, "#batch #pos #d_model"]]  # what is left out, by block
Way = tuple[int, tuple[str, tuple[int, ...]], str]  # bits, a name and its axes, what is left out
Quantised = Callable[[int, tuple[int, ...], Left], tuple[Float[Tensor, " sample"], Loss]]  # gives error and loss


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


@reads_inputs
def activations_table(subject: HuggingFaceSubject, tokens: Tokens, mask: Mask, progress: Progress = silent) -> Table:
    """Error and added loss where the inputs of all blocks and of the last norm are quantised.

    A row for the bits, the grain and what is left out. The error is relative, squared, of tokens and dimensions that
    are not outliers, mean over blocks; of activations that are not quantised before.
    """
    instance_of(mask, Mask, _WHAT)
    x = {block: here.cpu().float() for block, here in activations(ChangeResidual(), subject, tokens).items()}

    def quantised(bits: int, over: tuple[int, ...], left: Left) -> tuple[Tensor, Loss]:
        edit = Quantise(bits, over, left)
        return relative_error(x, edit, left_out(mask)[BOTH]), loss_of(subject, tokens, [edit])

    ways = reported([*product(BITS, GRAINS.items(), worth_trying(mask))], progress, "quantising activations")
    what = f"inputs of all blocks and of the last norm, scales of each text; {DIGITS}"
    return _quantised("What does quantising activations lose?", what, mask, ways, loss_of(subject, tokens), quantised)


@reads_inputs
def weights_table(subject: HuggingFaceSubject, tokens: Tokens, mask: Mask, progress: Progress = silent) -> Table:
    """Error and added loss where the linear maps of all blocks are quantised.

    Outlier dimensions leave out the columns of all maps that have d_model of them, which may be the attention's output
    map too. Raises InputError where no block has a map whose weights are floating-point numbers.
    """
    instance_of(mask, Mask, _WHAT)
    size = sum(one.weight.numel() for _, one in _maps(subject))
    share = size / sum(weight.numel() for block in subject.modules.blocks for weight in block.parameters())

    def quantised(bits: int, over: tuple[int, ...], left: Left) -> tuple[Tensor, Loss]:
        with quantised_weights(subject, bits, over, left) as error:
            return torch.tensor([error]), loss_of(subject, tokens)

    names = [name for name in worth_trying(mask) if name in (NOTHING, DIMS, RANDOM_DIMS)]
    ways = reported([*product(BITS, SIDES.items(), names)], progress, "quantising weights")
    what = f"linear maps of all blocks, {share:.1%} of their parameters; channel: a row"
    return _quantised("What does quantising weights lose?", what, mask, ways, loss_of(subject, tokens), quantised)


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


def _quantised(title: str, what: str, mask: Mask, ways: Iterable[Way], full: Loss, quantised: Quantised) -> Table:
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
