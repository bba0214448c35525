"""Sites: an operation on chosen entries of residuals, feed-forward updates, queries, keys, values, outputs or patterns.

    ChangeValues(Zero(), positions=[0])                        drains the sink's value in every layer
    ChangeResidual(Zero(), layers=range(3, 9), dims=[447])     removes a massive activation

Without an operation it is the site alone: `patching` takes what is there in one run and puts it into another.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention.call import AttentionCall
from ..attention.model_shape import ModelShape
from .edit import Edit, Output, Residual, Rows
from .operations import Keep, Operation
from .selectors import InLayers, OnHeads, Positions, drawn, inside, settle

Heads = Float[Tensor, "sequence head pos d"]


@dataclass(frozen=True)
class Change(InLayers):
    """`operation` on chosen positions and dimensions, in chosen layers; all by default.

    reads: which reads of `Subject.run` show the same activations: residuals, mlps or calls; empty for none.
    A control is drawn of the narrowest of its selectors: dimensions, else positions, else heads, else layers.
    """

    operation: Operation = Keep()
    positions: Positions = field(default=None, kw_only=True)
    dims: Positions = field(default=None, kw_only=True)
    reads: ClassVar[str] = "calls"

    def __post_init__(self) -> None:
        super().__post_init__()
        settle(self, "positions", "dims")

    def check(self, shape: ModelShape, length: int) -> None:
        super().check(shape, length)
        inside(self.positions, range(length), "position")
        inside(self.dims, range(self._width(shape, length)), "dimension")
        self.operation.check(length)

    def control(self, shape: ModelShape, length: int, generator: torch.Generator) -> Edit:
        if self.dims is not None:
            return drawn(self, "dims", range(self._width(shape, length)), generator)
        if self.positions is not None:
            return drawn(self, "positions", range(length), generator)
        return super().control(shape, length, generator)

    def for_rows(self, rows: Rows) -> Edit:
        operation = self.operation.for_rows(rows)
        return self if operation is self.operation else replace(self, operation=operation)

    def taken(self, shown: Any) -> Tensor:
        """What a read of this site's kind is shown, as the activations that the site changes."""
        return shown

    def _width(self, shape: ModelShape, length: int) -> int:
        return shape.d_model

    def _changed(self, layer: int, x: Tensor, heads: Tensor | None = None) -> Tensor:
        if not self.acts_in(layer):
            return x
        new = self.operation(layer, x)
        if new is x or (heads is None and self.positions is None and self.dims is None):
            return new
        chosen = _mask(self.positions, x.shape[-2], x.device)[:, None] & _mask(self.dims, x.shape[-1], x.device)
        return torch.where(chosen if heads is None else chosen & heads.to(x.device)[:, None, None], new, x)


def _mask(chosen: Positions, size: int, device: torch.device) -> Tensor:
    mask = torch.full((size,), chosen is None, device=device)
    mask[list(chosen or ())] = True
    return mask


class _ChangeEmbedding(Change):
    reads = ""

    def layers_of(self, shape: ModelShape) -> Sequence[int]:
        return (0,)


class ChangeTokenEmbedding(_ChangeEmbedding):
    """`operation` on what the table of tokens gives; its layer is 0."""

    def token_embedding(self, x: Residual) -> Residual:
        return self._changed(0, x)


class ChangePositionEmbedding(_ChangeEmbedding):
    """`operation` on what the table of learned positions gives; its layer is 0."""

    def position_embedding(self, x: Residual) -> Residual:
        return self._changed(0, x)


class ChangeResidual(Change):
    """`operation` on the inputs of blocks `layers`; `n_layers` is the output of the last."""

    reads = "residuals"

    def residual(self, block: int, x: Residual) -> Residual:
        return self._changed(block, x)

    def layers_of(self, shape: ModelShape) -> Sequence[int]:
        return range(shape.n_layers + 1)


class ChangeMLP(Change):
    """`operation` on what the feed-forward layers of blocks `layers` add to the residual stream."""

    reads = "mlps"

    def mlp(self, block: int, x: Residual) -> Residual:
        return self._changed(block, x)

    def layers_of(self, shape: ModelShape) -> Sequence[int]:
        return shape.mlp_layers


@dataclass(frozen=True)
class _ChangeHeads(Change, OnHeads):
    """The same of heads; grouped keys and values are changed where any of their query heads is chosen."""

    def _width(self, shape: ModelShape, length: int) -> int:
        return shape.d_head

    def _on_heads_of(self, call: AttentionCall, x: Heads) -> Heads:
        heads = None if self.heads is None else self.of_heads(call.layer, x.shape[1], call.q.shape[1])
        return self._changed(call.layer, x, heads)


class ChangeQueries(_ChangeHeads):
    """`operation` on queries, after norms and rotation."""

    def call(self, call: AttentionCall) -> AttentionCall:
        whole, past = _from_start(call, call.q)
        q = self._on_heads_of(call, whole)
        return call if q is whole else replace(call, q=q[:, :, past:])

    def taken(self, shown: AttentionCall) -> Heads:
        return shown.q


class ChangeKeys(_ChangeHeads):
    """`operation` on keys, after norms and rotation."""

    def call(self, call: AttentionCall) -> AttentionCall:
        k = self._on_heads_of(call, call.k)
        return call if k is call.k else replace(call, k=k)

    def taken(self, shown: AttentionCall) -> Heads:
        return shown.k


class ChangeValues(_ChangeHeads):
    """`operation` on values."""

    def call(self, call: AttentionCall) -> AttentionCall:
        v = self._on_heads_of(call, call.v)
        return call if v is call.v else replace(call, v=v)

    def taken(self, shown: AttentionCall) -> Heads:
        return shown.v


class ChangeOutputs(_ChangeHeads):
    """`operation` on what heads return, before they are mixed."""

    def output(self, call: AttentionCall, z: Output) -> Output:
        return self._on_heads_of(call, z)

    def taken(self, shown: AttentionCall) -> Heads:
        return shown.output()


class ChangePattern(_ChangeHeads):
    """`operation` on attention weights; positions are queries, dimensions keys. For small T.

    It is shown whole rows, the slot's column first where there is one, which is changed where no keys are named.
    """

    def call(self, call: AttentionCall) -> AttentionCall:
        if not self.acts_in(call.layer):
            return call
        pattern, past = _from_start(call, call.pattern())
        new = self._behind_slot(call)._on_heads_of(call, pattern)
        return call if new is pattern else call.with_pattern(new[:, :, past:])

    def taken(self, shown: AttentionCall) -> Heads:
        return shown.pattern()

    def _width(self, shape: ModelShape, length: int) -> int:
        return length

    def _behind_slot(self, call: AttentionCall) -> "ChangePattern":
        if call.slot is None or self.dims is None:
            return self
        return replace(self, dims=[key + 1 for key in self.dims])


def _from_start(call: AttentionCall, x: Heads) -> tuple[Float[Tensor, "sequence head whole d"], int]:
    """`x` of queries with NaN for those that a cache holds, so that positions count from the start; how many."""
    past = call.k.shape[2] - call.q.shape[2]
    return torch.cat((x.new_full((*x.shape[:2], past, x.shape[3]), torch.nan), x), 2) if past else x, past
