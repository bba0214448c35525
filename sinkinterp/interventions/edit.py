"""The base of every intervention."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attention.call import AttentionCall
from ..attention.shape import ModelShape
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
        """What an attention layer consumes; `FixedPattern.of` sets the pattern itself."""
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
