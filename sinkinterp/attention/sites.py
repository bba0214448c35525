"""Sites: places in a model that are read and edited. Edit: the base of every intervention.

A read and an edit are the same thing seen from two sides. Both name a site, and hold a function of what flows there:

    subject.run(tokens, reads={"norms": RESIDUAL.read(vector_norms)}, edits=[Change(RESIDUAL, Zero(), dims=[447])])
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import Field, dataclass, field, fields, is_dataclass
from functools import cached_property
from operator import attrgetter
from types import NoneType
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..checks import Checked, InputError, finite_number, refusing
from .call import AttentionCall
from .shapes import HeadOutput, ModelShape, Residual, Unchanged, alike, check_kept

PositionIds = Int[Tensor, " pos"]
Neurons = Float[Tensor, "batch pos neuron"]


def check_positions(answer: Any, ids: PositionIds, who: str) -> None:
    """Raises InputError, which names the edit, where its answer is not one position for each token."""
    alike(answer, ids, who)
    if int(answer.min()) < 0:
        raise InputError(f"{who} returned the position {int(answer.min())}; positions count from 0")


@dataclass(frozen=True, repr=False)
class HeadWeights:
    """The linear map from a block's normed residual to the queries, keys or values of its heads.

    For keys and values, `head` counts kv heads. `bias` is None where the map has none.
    """

    weight: Float[Tensor, "head d_head d_model"]
    bias: Float[Tensor, "head d_head"] | None

    def with_bias(self, bias: Float[Tensor, "head d_head"]) -> "HeadWeights":
        """The same weight with another bias; `weight` is not computed for it."""
        changed = copy(self)
        vars(changed)["bias"] = bias
        return changed

    def __repr__(self) -> str:
        bias = "no bias" if self.bias is None else "a bias"
        return f"<HeadWeights {tuple(self.weight.shape)} with {bias}>"


@dataclass(frozen=True, repr=False)
class LazyWeights(HeadWeights):
    """Weights whose `weight` is computed when an edit asks for it."""

    def __init__(self, weight: Tensor | Callable[[], Tensor], bias: Tensor | None) -> None:
        vars(self).update({"make" if callable(weight) else "weight": weight}, bias=bias)

    @cached_property  # type: ignore[misc]  # computed once, where the field of its base is given
    def weight(self) -> Tensor:
        return vars(self)["make"]()


@refusing
def check_weights(answer: Any, before: HeadWeights, who: str) -> Iterator[str]:
    """Raises InputError, which names the edit, where its answer cannot take the place of weights."""
    is_made = {"make", "weight"} <= vars(before).keys()
    check_kept(not (is_made and before.weight._version), who)
    if not isinstance(answer, HeadWeights):
        yield f"{who} returned a {type(answer).__name__}; it must return HeadWeights"
    if "weight" in vars(answer):
        alike(answer.weight, before.weight, f"{who}, in weight,")
    if (answer.bias is None) != (before.bias is None):
        yield f"{who} must return {'a' if answer.bias is None else 'no'} bias, as it was given"
    if answer.bias is not None and before.bias is not None:
        alike(answer.bias, before.bias, f"{who}, in bias,")


@refusing
def check_call(edited: Any, call: AttentionCall, who: str) -> Iterator[str]:
    """Raises InputError, which names the edit, for an answer that is not such a call."""
    if not isinstance(edited, AttentionCall) or edited.layer != call.layer:
        yield f"{who} returned {edited!r:.60}; it must return the call of layer {call.layer}"
    for name in ("q", "k", "v"):
        x = alike(getattr(edited, name), getattr(call, name), f"{who}, in {name},")
        if x is not getattr(call, name) and not x.sum(dtype=torch.float32).isfinite():  # attention may hide a NaN
            yield f"{who} makes {name} that are not finite in layer {call.layer}"
    if edited.mask is not None and edited.mask.dtype != torch.bool:
        yield f"{who} makes masks that are not torch.bool"
    for name in ("scale", "softcap"):
        value = getattr(edited, name)
        if value is not getattr(call, name) and value is not None:
            finite_number(value, f"{who}, in {name}: it")


@dataclass(frozen=True, repr=False)
class Edit(Checked):
    """What changes while a model runs. Override the method of each site that changes; the other methods change nothing.

    Edits are applied in the order in which they are given, and reads see the result. A method that changes nothing
    returns its argument, the very same object. The model's own weights stay: an edit of weights changes what their map
    returns.
    """

    def __repr__(self) -> str:
        return description(self)

    @property
    def in_words(self) -> str:
        """What notes and tables call it: its code, unless a class has words for it."""
        return description(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What a notebook shows: the edit in words."""
        printer.text(self.in_words)

    def touches(self, site: "Site") -> bool:
        """Whether it changes what is at a site: its class overrides the method of the site."""
        return getattr(type(self), site.method.__name__) is not site.method

    def position_ids(self, ids: PositionIds) -> PositionIds:
        """The position that each token is given: a row of a table, or the angle of a rotation."""
        return ids

    def token_embedding(self, x: Residual) -> Residual:
        """What the table of tokens returns."""
        return x

    def position_embedding(self, x: Residual) -> Residual:
        """What the table of learned positions returns."""
        return x

    def residual(self, block: int, x: Residual) -> Residual:
        """The input of a block: block 0 reads token embedding plus position, block `n_layers` is the last output."""
        return x

    def query_weights(self, layer: int, weights: HeadWeights) -> HeadWeights:
        """How an attention layer makes queries, before norms and rotation."""
        return weights

    def key_weights(self, layer: int, weights: HeadWeights) -> HeadWeights:
        """How an attention layer makes keys, before norms and rotation."""
        return weights

    def value_weights(self, layer: int, weights: HeadWeights) -> HeadWeights:
        """How an attention layer makes values."""
        return weights

    def call(self, call: AttentionCall) -> AttentionCall:
        """What an attention layer computes from; `with_pattern` of a call sets its pattern itself.

        If a cache holds the beginning, `call.k` and `call.v` have all positions and `call.q` the new ones. The first
        query is at position `call.k.shape[2] - call.q.shape[2]`.
        """
        return call

    def output(self, call: AttentionCall, z: HeadOutput) -> HeadOutput:
        """Returns what an attention layer's heads return, before they are mixed."""
        return z

    def attention_input(self, layer: int, x: Residual) -> Residual:
        """Returns what an attention layer reads: the residual behind the norm before it, where it has one."""
        return x

    def neurons(self, block: int, x: Neurons) -> Neurons:
        """Returns the activations of a block's feed-forward layer, times its gate: its output matrix reads them."""
        return x

    def mlp(self, block: int, x: Residual) -> Residual:
        """What a block's feed-forward layer adds to the residual stream."""
        return x

    def check(self, shape: ModelShape, length: int) -> None:
        """Raises InputError where the edit does not fit a model of this shape, or sequences of this length."""

    def check_sequences(self, count: int) -> None:
        """Raises InputError where the edit does not fit a measurement of so many sequences."""

    def for_sequences(self, chosen: Int[Tensor, " sequence"]) -> "Edit":
        """The edit for the chosen sequences of a measurement; itself where it treats all sequences alike."""
        return self

    def control(self, shape: ModelShape, length: int, generator: torch.Generator) -> "Edit":
        """The same edit of as many other heads, positions or dimensions, drawn at random.

        Raises InputError for an edit that has no such control.
        """
        raise InputError(f"{type(self).__name__} chooses nothing to draw at random, so it has no control")


@dataclass(frozen=True)
class Site:
    """A place in a model that is read and edited.

    method: the method of `Edit` that changes it. label: its name in messages. layers: the blocks of a model that have
    it. instead: the site to read in its place, where no read sees it. check: raises InputError for an edit's answer
    that cannot take the place of what was there, given both and the edit's name. selector: the argument of a `Change`
    that names its heads, "heads" or "kv_heads", or nothing. part: the tensor of an attention call that it is, or
    nothing. width: the dimensions of a vector there, of a model.
    """

    method: Callable[..., Any]
    label: str
    layers: Callable[[ModelShape], Sequence[int]] = field(compare=False)  # copies of getters are not equal
    instead: str = ""
    check: Callable[[Any, Any, str], Any] = field(default=alike, compare=False)
    selector: str = ""
    part: str = ""
    width: Callable[[ModelShape], int | None] = field(default=attrgetter("d_model"), compare=False)

    def __repr__(self) -> str:
        return f"sites.{(self.label if self.part else self.method.__name__).upper()}"

    def read(self, function: Callable[[Any], Tensor]) -> "Read":
        """A read of this site: `function` is shown what is there in every layer, and returns `sequence ...`.

        Raises InputError for a site that no read sees.
        """
        if self.instead:
            raise InputError(f"the {self.label} is not read; take {self.instead}")
        return Read(CALL, lambda call: function(self.tensor_of(call))) if self.part else Read(self, function)

    def tensor_of(self, call: AttentionCall) -> Tensor:
        """The tensor of a call that is at this site, a part of calls."""
        return call.pattern() if self.part == "pattern" else getattr(call, self.part)

    def edited(self, x: Any, edits: Iterable[Edit], *place: Any) -> Any:
        """The activation `x` after the edits; `x` itself if they change nothing. place: see `Edit`."""
        for edit in (edit for edit in edits if edit.touches(self)):
            name = self.method.__name__
            answer = Unchanged(x).shown_to(getattr(edit, name), f"{type(edit).__name__}.{name}", *place)
            self.check(answer, x, f"{type(edit).__name__}.{name}")
            x = answer
        return x


@dataclass(frozen=True)
class Read:
    """A pure function of what is at a site, evaluated during a pass and after its edits."""

    site: Site
    function: Callable[[Any], Tensor]


CallRead = Callable[[AttentionCall], Tensor]
Reads = Mapping[str, Read | CallRead]  # a plain function reads attention calls


def reads_of(reads: Any) -> dict[str, Read]:
    """The reads of a pass by name. Raises InputError for anything else than a dictionary of reads and functions."""
    if not isinstance(reads, Mapping) or not all(isinstance(x, Read) or callable(x) for x in reads.values()):
        fix = '{"x": si.sites.RESIDUAL.read(lambda x: x[:, 0])}'
        raise InputError(f"reads are a dictionary of reads, {fix}, or of functions of calls; got {reads!r:.60}")
    return {name: read if isinstance(read, Read) else CALL.read(read) for name, read in reads.items()}


def _first_block(shape: ModelShape) -> Sequence[int]:
    return (0,)


def _blocks(shape: ModelShape) -> Sequence[int]:
    return range(shape.n_layers)


def _before_and_behind_blocks(shape: ModelShape) -> Sequence[int]:
    return range(shape.n_layers + 1)


_ATTENTION, _WITH_MLP = attrgetter("attention_layers"), attrgetter("mlp_layers")  # which pickle, as lambdas do not
_TABLES = "ChangeResidual(layers=[0]), which both tables make"
_MAPS = "the call, or what the heads return"


def _embedded(shape: ModelShape) -> int:
    return shape.d_embedding or shape.d_model


def _of_value(shape: ModelShape) -> int:
    return shape.d_value or shape.d_head


TOKEN_EMBEDDING = Site(Edit.token_embedding, "token embedding", _first_block, _TABLES, width=_embedded)
POSITION_EMBEDDING = Site(Edit.position_embedding, "position embedding", _first_block, _TABLES)
POSITION_IDS = Site(Edit.position_ids, "positions", _first_block, "what they change, such as the call", check_positions)
RESIDUAL = Site(Edit.residual, "residual", _before_and_behind_blocks)
QUERY_WEIGHTS = Site(Edit.query_weights, "query weights", _ATTENTION, _MAPS, check_weights)
KEY_WEIGHTS = Site(Edit.key_weights, "key weights", _ATTENTION, _MAPS, check_weights)
VALUE_WEIGHTS = Site(Edit.value_weights, "value weights", _ATTENTION, _MAPS, check_weights)
WEIGHT_SITES = (QUERY_WEIGHTS, KEY_WEIGHTS, VALUE_WEIGHTS)  # in the order in which models keep the three maps
CALL = Site(Edit.call, "attention call", _ATTENTION, check=check_call)
QUERIES = Site(Edit.call, "queries", _ATTENTION, selector="heads", part="q", width=attrgetter("d_head"))
KEYS = Site(Edit.call, "keys", _ATTENTION, selector="kv_heads", part="k", width=attrgetter("d_head"))
VALUES = Site(Edit.call, "values", _ATTENTION, selector="kv_heads", part="v", width=_of_value)
PATTERN = Site(Edit.call, "pattern", _ATTENTION, selector="heads", part="pattern")
OUTPUT = Site(Edit.output, "attention output", _ATTENTION, selector="heads", width=_of_value)
ATTENTION_INPUT = Site(Edit.attention_input, "attention input", _ATTENTION)
NEURONS = Site(Edit.neurons, "neurons", _blocks, width=attrgetter("d_mlp"))
MLP = Site(Edit.mlp, "feed-forward update", _WITH_MLP)
BLOCK_SITES = (RESIDUAL, ATTENTION_INPUT, CALL, OUTPUT, NEURONS, MLP)  # while blocks run, in forward order
TAPPED = (ATTENTION_INPUT, NEURONS, MLP)  # what a module of every block is given or returns; a model may lack them
_BEFORE_BLOCKS = (POSITION_IDS, TOKEN_EMBEDDING, POSITION_EMBEDDING)
CHANGES = tuple(site.method.__name__ for site in (*_BEFORE_BLOCKS, *WEIGHT_SITES, *BLOCK_SITES))  # methods of `Edit`


def description(value: object) -> str:
    """An edit as code would write it, without fields that have their default value; tensors by their shape.

    The paper's name, such as p1 <-> p5, stands behind it: positions of code count from 0, those of the paper from 1.
    """
    if isinstance(value, Tensor):
        return f"tensor{tuple(value.shape)}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {description(item)}" for key, item in value.items()) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(description, value)) + "]"
    if callable(value) and not is_dataclass(value):
        return getattr(value, "__name__", type(value).__name__)
    if isinstance(value, Site) or not is_dataclass(value):
        return repr(value)
    shown = [f for f in fields(value) if not (f.kw_only and _is_default(f, getattr(value, f.name)))]
    by_place = [description(getattr(value, f.name)) for f in shown if not f.kw_only]
    by_name = [f"{f.name}={description(getattr(value, f.name))}" for f in shown if f.kw_only]
    in_paper = f" ({value.in_paper})" if hasattr(value, "in_paper") else ""
    return f"{type(value).__name__}({', '.join(by_place + by_name)}){in_paper}"


def _is_default(field: Field[Any], value: object) -> bool:
    is_plain = isinstance(value, int | float | str | tuple | NoneType)
    return value is field.default or (is_plain and value == field.default)
