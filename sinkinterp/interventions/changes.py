"""Interventions on activations and on positions, and what users give as edits.

A `Change` does an operation on chosen entries at one site of a model. A site is the residual stream, a feed-forward
update, or queries, keys, values, outputs or patterns of heads.

    ChangeValues(Zero(), positions=[0])                        drains the sink's value in every layer
    ChangeResidual(Zero(), layers=range(3, 9), dims=[447])     removes a massive activation

Without an operation it only names a place, and is refused as an edit: `patching` reads the place in one run and puts
the result into another. Interventions on positions are those of Table 7 of Gu et al. (2025).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from functools import partial
from types import NoneType
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..attention import CHANGES, AttentionCall, Edit, HeadOutput, ModelShape, PositionIds, Read, Residual, sites
from ..attention.shapes import Unchanged, alike, called
from ..attention.sites import description
from ..checks import Checked, InputError, check_count, instance_of, is_whole, whole_number
from ..spec import Limits
from .selectors import LABELS, Choosing, Heads, OnPairs, check_chosen, listed

Activation = Float[Tensor, "*sequence_head pos d"]


@dataclass(frozen=True)
class Operation(Checked):
    """Makes new activations of a layer from old ones. A `Change` uses the entries that it chooses, and no others.

    in_words: what becomes of the entries, for notes and tables.
    """

    in_words: ClassVar[str] = ""

    def __call__(self, layer: int, x: Activation) -> Activation:
        """The new activations of a layer, in the shape of the old ones. Positions in `x` count from the first token."""
        raise NotImplementedError

    def check(self, length: int) -> None:
        """Raises InputError where the operation does not fit sequences of this length."""

    def check_sequences(self, count: int) -> None:
        """Raises InputError where the operation does not fit a measurement of `count` sequences."""

    def for_sequences(self, chosen: Int[Tensor, " sequence"]) -> "Operation":
        """The operation for the chosen sequences of a measurement; itself where it treats all sequences alike."""
        return self


@dataclass(frozen=True)
class Apply(Operation):
    """The result of a function of the activations, in their shape. A `Change` makes it of a function."""

    function: Callable[[Activation], Activation]

    def __call__(self, layer: int, x: Activation) -> Activation:
        return called(self.function, f"{description(self.function)}, f(x) of a Change,", x)


@dataclass(frozen=True)
class Zero(Operation):
    """Zero in every chosen entry."""

    in_words: ClassVar[str] = "set to zero"

    def __call__(self, layer: int, x: Activation) -> Activation:
        return torch.zeros_like(x)


@dataclass(frozen=True)
class SetTo(Operation):
    """One number in every chosen entry."""

    value: float
    in_words: ClassVar[str] = "set to {.value:g}"

    def __call__(self, layer: int, x: Activation) -> Activation:
        return torch.full_like(x, self.value)


@dataclass(frozen=True)
class Scale(Operation):
    """Multiplied by a factor."""

    factor: float
    in_words: ClassVar[str] = "times {.factor:g}"

    def __call__(self, layer: int, x: Activation) -> Activation:
        return x * self.factor


@dataclass(frozen=True)
class ClampNorm(Operation):
    """Vectors longer than `limit` are shrunk to that length."""

    limit: float
    limits: ClassVar[Limits] = {"limit": 0}

    def __call__(self, layer: int, x: Activation) -> Activation:
        tiny = torch.finfo(x.dtype).tiny
        return x * (self.limit / x.norm(dim=-1, keepdim=True).clamp(min=tiny)).clamp(max=1)


@dataclass(frozen=True)
class WithoutMassive(Operation):
    """Zero in massive entries: those above `least` in magnitude, and `times` the median of their sequence.

    Source: Sun et al. 2024, section 2, arXiv:2402.17762.
    """

    least: float = 100.0
    times: float = 1000.0
    limits: ClassVar[Limits] = {"least": 0, "times": 0}

    def __call__(self, layer: int, x: Activation) -> Activation:
        size = x.float().abs()
        usual = size.flatten(1).median(1).values.reshape(-1, *[1] * (x.ndim - 1))
        return x.masked_fill((size > self.least) & (size >= self.times * usual), 0.0)


@dataclass(frozen=True)
class MeanOfOthers(Operation):
    """Every chosen vector becomes the mean over the positions after the first `skip`, of its own sequence.

    It reads the whole sequence, which in a generation with a cache is the prompt. Use it to make a position look like
    any other, not where causality matters.
    """

    skip: int = 1
    in_words: ClassVar[str] = "set to the mean of the other positions"

    def check(self, length: int) -> None:
        whole_number(self.skip, f"of {length} positions, how many a mean skips", 0, length - 1)

    def __call__(self, layer: int, x: Activation) -> Activation:
        return x[..., self.skip :, :].mean(-2, keepdim=True).expand_as(x)


@dataclass(frozen=True)
class MatchedNoise(Operation):
    """Random numbers with the mean and variance that each dimension has over the positions of its own sequence.

    They are drawn from `seed`, and are the same for all sequences. In a generation with a cache the mean and the
    variance are those of the prompt.
    """

    seed: int = 0

    def __call__(self, layer: int, x: Activation) -> Activation:
        generator = torch.Generator().manual_seed(1000 * self.seed + layer)
        noise = torch.randn(x.shape[1:], generator=generator).to(x)
        return x.mean(-2, keepdim=True) + x.std(-2, correction=0, keepdim=True) * noise


def _check_differ(first: int, second: int) -> None:
    if first == second:
        raise InputError(f"position {first} with itself changes nothing; name two different positions")


@dataclass(frozen=True)
class SwapWith(Operation):
    """The positions `first` and `second` exchange their vectors."""

    first: int
    second: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_differ(self.first, self.second)

    def check(self, length: int) -> None:
        check_chosen((self.first, self.second), range(length), "position")

    def __call__(self, layer: int, x: Activation) -> Activation:
        order = torch.arange(x.shape[-2], device=x.device)
        order[[self.first, self.second]] = order[[self.second, self.first]]
        return x[..., order, :]


@dataclass(frozen=True, eq=False, repr=False)
class _WithValues(Operation):
    """Base of operations with given activations, by layer: of each sequence, or of one that stands for all.

    One vector stands for all layers, sequences and positions, also for those that are generated.
    """

    values: Mapping[int, Tensor] | Float[Tensor, " d"]

    __eq__, __hash__ = object.__eq__, object.__hash__  # not those of its base, which compare fields

    def __post_init__(self) -> None:
        if isinstance(self.values, Tensor) and self.values.ndim == 1:
            return
        given = self.values.items() if isinstance(self.values, Mapping) else [(None, None)]
        if not all(is_whole(layer) and isinstance(value, Tensor) and value.ndim > 1 for layer, value in given):
            raise InputError("activations are tensor(d), or by layer, {3: tensor(sequence, ..., pos, d)}")

    def __repr__(self) -> str:
        if isinstance(self.values, Tensor):
            return f"{type(self).__name__}(tensor{tuple(self.values.shape)})"
        shapes = ", ".join(f"{layer}: tensor{tuple(value.shape)}" for layer, value in self.values.items())
        return f"{type(self).__name__}({{{shapes}}})"

    def check_sequences(self, count: int) -> None:
        wrong = next((len(value) for value in self._by_layer().values() if len(value) not in (1, count)), None)
        if wrong is not None:
            raise InputError(f"{type(self).__name__} holds {wrong} sequences, for {count}")

    def for_sequences(self, chosen: Int[Tensor, " sequence"]) -> Operation:
        values = {n: v if len(v) == 1 else v[chosen.to(v.device)] for n, v in self._by_layer().items()}
        return self if all(len(value) == 1 for value in self._by_layer().values()) else replace(self, values=values)

    def _by_layer(self) -> Mapping[int, Tensor]:
        """The activations by layer; none for one vector."""
        return {} if isinstance(self.values, Tensor) else self.values

    def _of_layer(self, layer: int, x: Activation, count: int | None = None) -> Tensor:
        """The given activations of a layer, of one sequence or of each.

        Raises InputError where there are none, or they do not fit `x`, or `count` sequences.
        """
        by_layer = {layer: self.values} if isinstance(self.values, Tensor) else self.values
        if layer not in by_layer:
            raise InputError(f"no activations were taken of layer {layer}; choose among {sorted(by_layer)}")
        value = by_layer[layer].to(x)
        if value.ndim == 1:
            if len(value) != x.shape[-1]:
                raise InputError(f"a vector of {len(value)} numbers does not fit the {x.shape[-1]} of layer {layer}")
            return value.expand(1, *x.shape[1:])
        if value.shape[1:] != x.shape[1:] or (count is not None and len(value) not in (1, count)):
            what = f"activations {tuple(value.shape)} do not fit {tuple(x.shape)} of layer {layer}"
            raise InputError(f"{what}; patch between models of one shape and inputs of one length")
        return value


@dataclass(frozen=True, eq=False, repr=False)
class Put(_WithValues):
    """The given activations replace the model's own."""

    in_words: ClassVar[str] = "replaced by others"

    def __call__(self, layer: int, x: Activation) -> Activation:
        return self._of_layer(layer, x, len(x)).expand_as(x)


@dataclass(frozen=True, eq=False, repr=False)
class Add(_WithValues):
    """The given activations are added to the model's own."""

    def __call__(self, layer: int, x: Activation) -> Activation:
        return x + self._of_layer(layer, x, len(x))


@dataclass(frozen=True, eq=False, repr=False)
class PutAt(_WithValues):
    """Every sequence takes the given activations at one place of its own, and keeps its others.

    rows: which of the given sequences a sequence takes them from. places: its layer, head, position and dimension (of a
    pattern, the column); -1 for all. So each sequence of a pass tries one place.
    """

    rows: Int[Tensor, " sequence"]
    places: Int[Tensor, "sequence 4"]

    def check_sequences(self, count: int) -> None:
        if len(self.rows) != count:
            raise InputError(f"PutAt has places for {len(self.rows)} sequences, not for {count}")

    def for_sequences(self, chosen: Int[Tensor, " sequence"]) -> Operation:
        chosen = chosen.to(self.rows.device)
        return replace(self, rows=self.rows[chosen], places=self.places[chosen])

    def __call__(self, layer: int, x: Activation) -> Activation:
        mine = (self.places[:, 0] == layer).nonzero().flatten()
        if not len(mine):
            return x
        new, given = x.clone(), self._of_layer(layer, x)
        for i in mine.tolist():
            at = tuple(slice(None) if k < 0 else k for k in self.places[i, 1:].tolist())[-(x.ndim - 1) :]
            new[(i, *at)] = given[(int(self.rows[i]), *at)]
        return new


@dataclass(frozen=True, repr=False)
class Change(OnPairs):
    """`operation` on what is at a site, in chosen layers, heads, positions and dimensions; all by default.

    site: one of `si.sites`, such as `sites.RESIDUAL`, whose layer `n_layers` is the output of the last block.
    operation: one of this module, or a function of the activations, `[head] pos d` behind the sequences. None only
    names a site, which can be read, and is refused as an edit. heads: pairs (layer, head); keys and values have
    `kv_heads` instead. Of `sites.PATTERN`, positions are queries, and dims are keys. A control is drawn for the
    narrowest of the selectors: dimensions, else positions, else heads, else layers.
    """

    site: sites.Site
    operation: Operation | Callable[[Tensor], Tensor] | None = None
    heads: Heads | None = field(default=None, kw_only=True)
    kv_heads: Heads | None = field(default=None, kw_only=True)
    positions: Iterable[int] | None = field(default=None, kw_only=True)
    dims: Iterable[int] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.site not in CHANGED:
            raise InputError(f"a change is at one of {', '.join(map(repr, CHANGED))}; got {self.site!r:.40}")
        if not isinstance(self.operation, Operation | type) and callable(self.operation):
            object.__setattr__(self, "operation", Apply(self.operation))
        instance_of(self.operation, Operation | None, "an operation is one of ours, such as Zero(), or a function")
        object.__setattr__(self, "selector", self.site.selector)
        for name in ("heads", "kv_heads"):
            if name != self.selector and getattr(self, name) is not None:
                fix = f"give {self.selector}" if self.selector else "leave them out"
                raise InputError(f"{self.site!r} has no {name}; {fix}")
        super().__post_init__()

    @property
    def in_words(self) -> str:
        """What it does and, in brackets, the code; the code alone of an operation without words."""
        code, does = super().in_words, getattr(self.operation, "in_words", "").format(self.operation)
        named = {name: listed(LABELS[name], chosen) for name in LABELS if (chosen := getattr(self, name, None))}
        where = " ".join(f"in {text}" for name, text in named.items() if name == "layers")
        what = ", ".join([*(text for name, text in named.items() if name != "layers"), f"the {self.site.label}"])
        return " ".join(filter(None, (what.replace(", the", " of the"), where, does, f"[{code}]"))) if does else code

    @property
    def _operation(self) -> Operation:
        if not isinstance(self.operation, Operation):
            raise InputError("an edit without an operation only names a site; give one, such as Zero()")
        return self.operation

    @property
    def _selectors(self) -> list[str]:
        return [name for name in LABELS if name not in ("heads", "kv_heads") or name == self.selector]

    def touches(self, site: sites.Site) -> bool:
        return site == (sites.CALL if self.site.part else self.site)

    def choices(self, shape: ModelShape, length: int) -> Mapping[str, Sequence[Any]]:
        width = length if self.site == sites.PATTERN else self.site.width(shape) or 0
        return {**super().choices(shape, length), "dims": range(width), "layers": self.site.layers(shape)}

    def check(self, shape: ModelShape, length: int) -> None:
        self.check_site(shape, length)
        self._operation.check(length)

    def check_site(self, shape: ModelShape, length: int) -> None:
        """Raises InputError where the model, or sequences of this length, lack a chosen place."""
        super().check(shape, length)

    def check_sequences(self, count: int) -> None:
        self._operation.check_sequences(count)

    def for_sequences(self, chosen: Int[Tensor, " sequence"]) -> Edit:
        operation = self._operation.for_sequences(chosen)
        return self if operation is self.operation else replace(self, operation=operation)

    def read(self) -> Read:
        """The read of the activations that the edit changes.

        Raises InputError for embeddings, which are not read, and for an operation, which reading would leave out.
        """
        instance_of(self.operation, NoneType, "a site is where something is read or put, and has no operation")
        return self.site.read(_itself)

    def token_embedding(self, x: Tensor) -> Tensor:
        return self._changed(0, x)

    position_embedding = token_embedding

    def residual(self, block: int, x: Tensor) -> Tensor:
        return self._changed(block, x)

    neurons = mlp = residual

    def attention_input(self, layer: int, x: Tensor) -> Tensor:
        return self._changed(layer, x)

    def output(self, call: AttentionCall, z: HeadOutput) -> HeadOutput:
        return self._changed(call.layer, z)

    def call(self, call: AttentionCall) -> AttentionCall:
        """The call with another tensor. The weights of keys that a query cannot see stay zero.

        The column of a slot is the first of a pattern; it is changed where no keys are named.
        """
        if not self.acts_in(call.layer):
            return call
        is_behind_slot = self.site == sites.PATTERN and call.slot is not None and self.dims is not None
        change = replace(self, dims=[key + 1 for key in self.dims or ()]) if is_behind_slot else self
        old, past = _with_past(call, self.site.tensor_of(call))
        new = change._changed(call.layer, old)
        if new is old:
            return call
        if self.site != sites.PATTERN:
            changed: dict[str, Any] = {self.site.part: new[:, :, past:]}
            return replace(call, **changed)
        slot, keys = new[:, :, past:].split((new.shape[-1] - call.k.shape[2], call.k.shape[2]), -1)
        weights = torch.cat((slot, keys * call.allowed()), -1)
        return call.with_pattern(weights, self.head_mask(call.layer, call.q.shape[1]).to(weights.device))

    def _changed(self, layer: int, x: Tensor) -> Tensor:
        if not self.acts_in(layer):
            return x
        who = type(self.operation).__name__
        new = alike(Unchanged(x).shown_to(self._operation, who, layer), x, who)
        if new is x or (self.pairs is None and self.positions is None and self.dims is None):
            return new
        chosen = _mask(self.positions, x.shape[-2], x.device)[:, None] & _mask(self.dims, x.shape[-1], x.device)
        if self.pairs is not None:
            chosen = chosen & self.head_mask(layer, x.shape[1]).to(x.device)[:, None, None]
        return torch.where(chosen, new, x)


CHANGED = (  # the sites of activations
    *(sites.TOKEN_EMBEDDING, sites.POSITION_EMBEDDING, sites.RESIDUAL, sites.ATTENTION_INPUT, sites.NEURONS, sites.MLP),
    *(sites.QUERIES, sites.KEYS, sites.VALUES, sites.PATTERN, sites.OUTPUT),
)
ChangeResidual = partial(Change, sites.RESIDUAL)  # the inputs of blocks; layer `n_layers` is the output of the last
ChangeMLP = partial(Change, sites.MLP)  # what the feed-forward layers add to the residual stream
ChangeOutputs = partial(Change, sites.OUTPUT)  # what heads return, before a gate multiplies it and heads are mixed
ChangeKeys = partial(Change, sites.KEYS)  # after norms and rotation
ChangeValues = partial(Change, sites.VALUES)


def _itself(x: Tensor) -> Tensor:
    return x


def _mask(chosen: Iterable[int] | None, size: int, device: torch.device) -> Bool[Tensor, " size"]:
    mask = torch.full((size,), chosen is None, device=device)
    mask[list(chosen or ())] = True
    return mask


def _with_past(
    call: AttentionCall, x: Float[Tensor, "batch any_head some_pos d"]
) -> tuple[Float[Tensor, "batch any_head pos d"], int]:
    """`x` behind NaN for the `past` positions that only keys and values have, so that it counts from 0; and `past`."""
    past = call.k.shape[2] - x.shape[2]
    return torch.cat((x.new_full((*x.shape[:2], past, x.shape[3]), torch.nan), x), 2) if past else x, past


# Positions: all but the last give tokens other rows of a table of learned positions, or angles of a rotation


@dataclass(frozen=True, repr=False)
class _PositionPair(Edit):
    """Two positions of the sequence, counted from 0."""

    first: int
    second: int
    _arrow: ClassVar[str] = "<->"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_differ(self.first, self.second)

    @property
    def in_paper(self) -> str:
        """The edit in the words of the paper, whose positions count from 1."""
        return f"p{self.first + 1} {self._arrow} p{self.second + 1}"

    def check(self, shape: ModelShape, length: int) -> None:
        check_chosen((self.first, self.second), range(length), "position")

    def control(self, shape: ModelShape, length: int, generator: torch.Generator) -> Edit:
        """The same edit of two other positions, drawn at random."""
        others = [position for position in range(length) if position not in (self.first, self.second)]
        check_count(others, f"other positions, which a control takes, in sequences of {length}", 2)
        first, second = (others[i] for i in torch.randperm(len(others), generator=generator)[:2])
        return replace(self, first=first, second=second)


@dataclass(frozen=True, repr=False)
class SwapPositions(_PositionPair):
    """The tokens at two positions exchange positions: p_first <-> p_second."""

    def position_ids(self, ids: PositionIds) -> PositionIds:
        swapped = ids.clone()
        swapped[[self.first, self.second]] = ids[[self.second, self.first]]
        return swapped


@dataclass(frozen=True, repr=False)
class ReplacePosition(_PositionPair):
    """The token at `first` is given the position of `second`: p_first <- p_second."""

    _arrow: ClassVar[str] = "<-"

    def position_ids(self, ids: PositionIds) -> PositionIds:
        replaced = ids.clone()
        replaced[self.first] = ids[self.second]
        return replaced


@dataclass(frozen=True, repr=False)
class RemovePosition(Choosing):
    """The tokens at `positions` (all by default) get no learned position: zero is added in its place."""

    positions: Iterable[int] | None = None

    def position_embedding(self, x: Residual) -> Residual:
        return x.masked_fill(_mask(self.positions, x.shape[-2], x.device)[:, None], 0)


# What users give as edits: one or several, and functions of attention calls


@dataclass(frozen=True, repr=False)
class CallFunction(Edit):
    """A plain function from the call of every attention layer to the call that takes its place."""

    function: Callable[..., AttentionCall]

    def call(self, call: AttentionCall) -> AttentionCall:
        who = description(self.function)
        must = "must return a call: replace(call, q=...), call.with_pattern(...), or the call itself"
        return instance_of(called(self.function, who, call), AttentionCall, f"{who} {must}")


AnyEdit = Edit | Callable[[AttentionCall], AttentionCall]
Edits = AnyEdit | Sequence[AnyEdit]


def edits_of(edits: Any) -> tuple[Edit, ...]:
    """One edit, or several in their order. A function takes and returns an attention call.

    Raises InputError for anything else.
    """
    given = (edits,) if isinstance(edits, Edit) or callable(edits) else edits
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping):
        given = (edits,)
    return tuple(_edit_of(edit) for edit in given)


def _edit_of(edit: Any) -> Edit:
    if isinstance(edit, Edit):
        if all(getattr(type(edit), name) is getattr(Edit, name) for name in CHANGES):
            raise InputError(f"{type(edit).__name__} overrides none of {', '.join(CHANGES)}, so it changes nothing")
        return edit
    if callable(edit) and not isinstance(edit, type | torch.nn.Module) and not is_dataclass(edit):  # an operation
        return CallFunction(edit)
    if isinstance(edit, Operation):
        code = description(edit)
        raise InputError(f"{code:.60} is an operation and needs a site: edits=Change(si.sites.RESIDUAL, {code:.60})")
    if isinstance(edit, type) and issubclass(edit, Edit | Operation):
        raise InputError(f"{edit.__name__} is not an edit; write {edit.__name__}(), with its values")
    what = edit.__name__ if isinstance(edit, type) else repr(edit) if isinstance(edit, str) else type(edit).__name__
    raise InputError(f"{what:.60} is not an edit; give one or a list of them, such as edits=si.SwapPositions(0, 4)")
