"""Edit: the base of every intervention, and its description as text. Site: a place in a model that edits change."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import Field, dataclass, fields, is_dataclass
from inspect import isfunction
from types import NoneType
from typing import Any, TypedDict

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attention.call import AttentionCall
from ..attention.shapes import HeadOutput, ModelShape, Residual
from ..checks import Told, check_fields
from ..errors import InputError
from .answers import called

PositionIds = Int[Tensor, " pos"]


@dataclass(frozen=True, repr=False)
class HeadWeights:
    """The linear map from a block's normed residual to the queries, keys or values of its heads.

    For keys and values, `head` counts kv heads, each shared by `group` query heads. `bias` is None where the map has
    none.
    """

    weight: Float[Tensor, "head d_head d_model"]
    bias: Float[Tensor, "head d_head"] | None
    group: int = 1

    def with_bias(self, bias: Float[Tensor, "head d_head"]) -> "HeadWeights":
        """The same weight with another bias; `weight` is not computed for it."""
        changed = copy(self)
        vars(changed)["bias"] = bias
        return changed

    def __repr__(self) -> str:
        bias = "no bias" if self.bias is None else "a bias"
        return f"<HeadWeights {tuple(self.weight.shape)} with {bias}>"


@dataclass(frozen=True)
class Edit(metaclass=Told):
    """What changes while a model runs. Override the method of each site that changes; the other methods change nothing.

    Edits are applied in the order in which they are given, and reads see the result. A method that changes nothing
    returns its argument, the very same object. The model's own weights stay: an edit of weights changes what their map
    returns.
    """

    def __post_init__(self) -> None:
        check_fields(self)

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

        Where a cache holds the beginning, `call.k` and `call.v` have all positions and `call.q` only the new ones: the
        first query then stands at position `call.k.shape[2] - call.q.shape[2]`.
        """
        return call

    def output(self, call: AttentionCall, z: HeadOutput) -> HeadOutput:
        """What an attention layer's heads return, before they are mixed."""
        return z

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
        raise InputError(
            f"{type(self).__name__} chooses nothing that could be drawn at random; run it without a control"
        )


@dataclass(frozen=True)
class CallFunction(Edit):
    """A plain function from the call of every attention layer to the call that takes its place."""

    function: Callable[..., AttentionCall]

    def call(self, call: AttentionCall) -> AttentionCall:
        edited = called(self.function, description(self.function), call)
        if not isinstance(edited, AttentionCall):
            fix = "return replace(call, q=...), call.with_pattern(...), or the call itself where it stays"
            raise InputError(f"{description(self.function)} returned a {type(edited).__name__}, not a call; {fix}")
        return edited


Edits = Edit | Callable[[AttentionCall], AttentionCall] | Sequence[Edit | Callable[[AttentionCall], AttentionCall]]


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
        if all(getattr(type(edit), name) is getattr(Edit, name) for name in _CHANGES):
            raise InputError(f"{type(edit).__name__} overrides none of {', '.join(_CHANGES)}, so it changes nothing")
        return edit
    if callable(edit) and not isinstance(edit, type | torch.nn.Module) and not is_dataclass(edit):  # an operation
        return CallFunction(edit)
    what = edit.__name__ if isinstance(edit, type) else type(edit).__name__
    raise InputError(f"{what} is not an edit; give one or a list of them, such as edits=si.SwapPositions(0, 4)")


class Reads(TypedDict, total=False):
    """The keywords with which `Subject.run` is asked for reads. Each read has a name."""

    calls: Mapping[str, Callable[[AttentionCall], Tensor]]
    outputs: Mapping[str, Callable[[Tensor], Tensor]]
    residuals: Mapping[str, Callable[[Tensor], Tensor]]
    mlps: Mapping[str, Callable[[Tensor], Tensor]]


@dataclass(frozen=True)
class Site:
    """A place in a model that edits change.

    method: the method of `Edit` that changes it. label: its name in messages. layers: the blocks of a model that have
    it. reads: from a read's name and the read, the keyword of `Subject.run` that shows the site to it; None for a site
    that no read sees.
    """

    method: Callable[..., Any]
    label: str
    layers: Callable[[ModelShape], Sequence[int]]
    reads: Callable[[str, Callable[[Any], Tensor]], Reads] | None = None

    def touched_by(self, edit: Edit) -> bool:
        """Whether an edit overrides the method of this site."""
        return getattr(type(edit), self.method.__name__) is not self.method

    def name_of(self, edit: Edit) -> str:
        """An edit's method, for messages."""
        return f"{type(edit).__name__}.{self.method.__name__}"

    def apply(self, edit: Edit, *arguments: Any) -> Any:
        """What the edit's method returns for these arguments."""
        return called(getattr(edit, self.method.__name__), self.name_of(edit), *arguments)


def _first_block(shape: ModelShape) -> Sequence[int]:
    return (0,)


def _attention_layers(shape: ModelShape) -> Sequence[int]:
    return shape.attention_layers


TOKEN_EMBEDDING = Site(Edit.token_embedding, "token embedding", _first_block)
POSITION_EMBEDDING = Site(Edit.position_embedding, "position embedding", _first_block)
RESIDUAL = Site(
    Edit.residual, "residual", lambda shape: range(shape.n_layers + 1), lambda name, read: {"residuals": {name: read}}
)
QUERY_WEIGHTS = Site(Edit.query_weights, "query weights", _attention_layers)
KEY_WEIGHTS = Site(Edit.key_weights, "key weights", _attention_layers)
VALUE_WEIGHTS = Site(Edit.value_weights, "value weights", _attention_layers)
WEIGHT_SITES = (QUERY_WEIGHTS, KEY_WEIGHTS, VALUE_WEIGHTS)  # in the order in which models keep the three maps
CALL = Site(Edit.call, "attention call", _attention_layers, lambda name, read: {"calls": {name: read}})
OUTPUT = Site(Edit.output, "attention output", _attention_layers, lambda name, read: {"outputs": {name: read}})
MLP = Site(Edit.mlp, "feed-forward update", lambda shape: shape.mlp_layers, lambda name, read: {"mlps": {name: read}})


_OTHERS = ("check", "check_sequences", "for_sequences", "control")  # methods of Edit that change nothing
_CHANGES = tuple(name for name, x in vars(Edit).items() if isfunction(x) and name[0] != "_" and name not in _OTHERS)


def description(value: object) -> str:
    """An edit as code would write it, without fields that have their default value; tensors by their shape."""
    if isinstance(value, Tensor):
        return f"tensor{tuple(value.shape)}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {description(item)}" for key, item in value.items()) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(description, value)) + "]"
    if callable(value) and not is_dataclass(value):
        return getattr(value, "__name__", type(value).__name__)
    if not is_dataclass(value):
        return repr(value)
    shown = [f for f in fields(value) if not (f.kw_only and _is_default(f, getattr(value, f.name)))]
    by_place = [description(getattr(value, f.name)) for f in shown if not f.kw_only]
    by_name = [f"{f.name}={description(getattr(value, f.name))}" for f in shown if f.kw_only]
    return f"{type(value).__name__}({', '.join(by_place + by_name)})"


def _is_default(field: Field, value: object) -> bool:
    return value is field.default or (
        isinstance(value, int | float | str | tuple | NoneType) and value == field.default
    )
