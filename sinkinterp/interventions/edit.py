"""The base of every intervention."""

from collections.abc import Mapping
from dataclasses import Field, dataclass, fields, is_dataclass
from types import NoneType

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attention.call import AttentionCall
from ..attention.model_shape import ModelShape
from ..errors import InputError

PositionIds = Int[Tensor, " pos"]
Residual = Float[Tensor, "#sequence pos d_model"]
Output = Float[Tensor, "sequence head pos d_value"]
Rows = Int[Tensor, " sequence"]


@dataclass(frozen=True)
class HeadWeights:
    """The linear map from a block's normed residual to the queries, keys or values of its heads.

    Keys and values count kv heads, each shared by `group` query heads. `bias` is None where the map has none.
    """

    weight: Float[Tensor, "head d_head d_model"]
    bias: Float[Tensor, "head d_head"] | None
    group: int = 1


@dataclass(frozen=True)
class Edit:
    """What changes while a model runs. Override the method of the site that changes; the others pass through.

    Edits are applied in the order they are given in, and reads see what they leave. A method returns what it was given,
    the very same object, where nothing changes. Weights are changed before a pass and put back after it.
    """

    def position_ids(self, ids: PositionIds) -> PositionIds:
        """Positions that the tokens are given, by place in the sequence: rows of a table, or angles of a rotation."""
        return ids

    def token_embedding(self, x: Residual) -> Residual:
        """What the table of tokens gives."""
        return x

    def position_embedding(self, x: Residual) -> Residual:
        """What the table of learned positions gives."""
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
        """What an attention layer consumes; `with_pattern` of a call sets its pattern itself."""
        return call

    def output(self, call: AttentionCall, z: Output) -> Output:
        """What an attention layer's heads return, before they are mixed."""
        return z

    def mlp(self, block: int, x: Residual) -> Residual:
        """What a block's feed-forward layer adds to the residual stream."""
        return x

    def check(self, shape: ModelShape, length: int) -> None:
        """Raises InputError where the edit does not fit a model of this shape, or sequences of this length."""

    def for_rows(self, rows: Rows) -> "Edit":
        """The edit of these sequences alone, counted in the tokens that are measured; itself where all are alike."""
        return self

    def control(self, shape: ModelShape, length: int, generator: torch.Generator) -> "Edit":
        """The same edit of as many heads, positions or dimensions, others than these, drawn at random.

        Raises InputError for an edit that has no such control.
        """
        raise InputError(f"{type(self).__name__} chooses nothing that could be drawn at random; run it with no control")


def touches(edit: Edit, site: str) -> bool:
    """Whether an edit overrides the method of a site."""
    return getattr(type(edit), site) is not getattr(Edit, site)


def words(edit: Edit) -> str:
    """The edit as it would be written, without what is left at its default; tensors by their shape."""
    return _written(edit)


def _written(value: object) -> str:
    if isinstance(value, Tensor):
        return f"tensor{tuple(value.shape)}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_written(one)}" for key, one in value.items()) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_written, value)) + "]"
    if not is_dataclass(value):
        return repr(value)
    given = [f for f in fields(value) if not (f.kw_only and _is_default(f, getattr(value, f.name)))]
    own = [_written(getattr(value, f.name)) for f in given if not f.kw_only]
    named = [f"{f.name}={_written(getattr(value, f.name))}" for f in given if f.kw_only]
    return f"{type(value).__name__}({', '.join(own + named)})"


def _is_default(field: Field, value: object) -> bool:
    return value is field.default or (
        isinstance(value, int | float | str | tuple | NoneType) and value == field.default
    )
