"""Sites: an operation on chosen entries of residuals, feed-forward updates, queries, keys, values, outputs or patterns.

    ChangeValues(Zero(), positions=[0])                        drains the sink's value in every layer
    ChangeResidual(Zero(), layers=range(3, 9), dims=[447])     removes a massive activation

Without an operation it names a site only: `patching` reads the site in one run and puts the result into another.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from ..attention.call import AttentionCall
from ..attention.model_shape import ModelShape
from ..attention.shapes import HeadOutput, Residual
from .change import Change
from .edit import CALL, MLP, OUTPUT, POSITION_EMBEDDING, RESIDUAL, TOKEN_EMBEDDING, Site
from .selectors import OnHeads


class ChangeTokenEmbedding(Change):
    """`operation` on what the table of tokens returns; its layer is 0."""

    site = TOKEN_EMBEDDING

    def _width(self, shape: ModelShape, length: int) -> int:
        return shape.d_embedding or shape.d_model

    @override
    def token_embedding(self, x: Residual) -> Residual:
        return self._changed(0, x)


class ChangePositionEmbedding(Change):
    """`operation` on what the table of learned positions returns; its layer is 0."""

    site = POSITION_EMBEDDING

    @override
    def position_embedding(self, x: Residual) -> Residual:
        return self._changed(0, x)


class ChangeResidual(Change):
    """`operation` on the inputs of blocks `layers`; `n_layers` is the output of the last."""

    site = RESIDUAL

    @override
    def residual(self, block: int, x: Residual) -> Residual:
        return self._changed(block, x)


class ChangeMLP(Change):
    """`operation` on what the feed-forward layers of blocks `layers` add to the residual stream."""

    site = MLP

    @override
    def mlp(self, block: int, x: Residual) -> Residual:
        return self._changed(block, x)


@dataclass(frozen=True)
class _ChangeHeads(Change, OnHeads):
    """The same for heads; grouped keys and values are changed where any of their query heads is chosen."""

    site: ClassVar[Site] = CALL

    def _width(self, shape: ModelShape, length: int) -> int:
        return shape.d_head

    def _changed_heads(
        self, call: AttentionCall, x: Float[Tensor, "batch any_head pos d"]
    ) -> Float[Tensor, "batch any_head pos d"]:
        heads = None if self.heads is None else self.head_mask(call.layer, x.shape[1], call.q.shape[1])
        return self._changed(call.layer, x, heads)


@dataclass(frozen=True)
class _ChangeInCall(_ChangeHeads):
    """`activations` finds the tensor in the call, `_with` makes the call that has another one in its place."""

    @override
    def call(self, call: AttentionCall) -> AttentionCall:
        if not self.acts_in(call.layer):
            return call
        old, past = _with_past(call, self.activations(call))
        new = self._changed_heads(call, old)
        return call if new is old else self._with(call, new[:, :, past:])

    def _with(self, call: AttentionCall, new: Tensor) -> AttentionCall:
        raise NotImplementedError


class ChangeQueries(_ChangeInCall):
    """`operation` on queries, after norms and rotation."""

    def activations(self, shown: AttentionCall) -> Tensor:
        return shown.q

    def _with(self, call: AttentionCall, new: Tensor) -> AttentionCall:
        return replace(call, q=new)


class ChangeKeys(_ChangeInCall):
    """`operation` on keys, after norms and rotation."""

    def activations(self, shown: AttentionCall) -> Tensor:
        return shown.k

    def _with(self, call: AttentionCall, new: Tensor) -> AttentionCall:
        return replace(call, k=new)


class ChangeValues(_ChangeInCall):
    """`operation` on values."""

    def _width(self, shape: ModelShape, length: int) -> int:
        return shape.d_value or shape.d_head

    def activations(self, shown: AttentionCall) -> Tensor:
        return shown.v

    def _with(self, call: AttentionCall, new: Tensor) -> AttentionCall:
        return replace(call, v=new)


class ChangePattern(_ChangeInCall):
    """`operation` on attention weights; positions are queries, dimensions keys. For small T.

    The operation is given complete rows. Where there is a slot, its column is the first; it is changed where no keys
    are named.
    """

    @override
    def call(self, call: AttentionCall) -> AttentionCall:
        return super(ChangePattern, self._behind_slot(call)).call(call)

    def activations(self, shown: AttentionCall) -> Tensor:
        return shown.pattern()

    def _with(self, call: AttentionCall, new: Tensor) -> AttentionCall:
        n_heads = call.q.shape[1]
        return call.with_pattern(new, self.head_mask(call.layer, n_heads, n_heads).to(new.device))

    def _width(self, shape: ModelShape, length: int) -> int:
        return length

    def _behind_slot(self, call: AttentionCall) -> "ChangePattern":
        if call.slot is None or self.dims is None:
            return self
        return replace(self, dims=[key + 1 for key in self.dims])


class ChangeOutputs(_ChangeHeads):
    """`operation` on what heads return, before they are mixed."""

    site = OUTPUT

    def _width(self, shape: ModelShape, length: int) -> int:
        return shape.d_value or shape.d_head

    @override
    def output(self, call: AttentionCall, z: HeadOutput) -> HeadOutput:
        return self._changed_heads(call, z)

    def activations(self, shown: AttentionCall) -> Tensor:
        return shown.output()


def _with_past(
    call: AttentionCall, x: Float[Tensor, "batch any_head some_pos d"]
) -> tuple[Float[Tensor, "batch any_head pos d"], int]:
    """`x` behind NaN for the `past` positions that only keys and values have, so that it counts from 0; and `past`."""
    past = call.k.shape[2] - x.shape[2]
    return torch.cat((x.new_full((*x.shape[:2], past, x.shape[3]), torch.nan), x), 2) if past else x, past
