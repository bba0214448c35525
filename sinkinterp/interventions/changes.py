"""Interventions that do any operation on chosen entries at one site of a model.

A site is the residual stream, a feed-forward update, or queries, keys, values, outputs or patterns of heads.

    ChangeValues(Zero(), positions=[0])                        drains the sink's value in every layer
    ChangeResidual(Zero(), layers=range(3, 9), dims=[447])     removes a massive activation

Without an operation it only names a site, and is refused as an edit: `patching` reads the site in one run and puts the
result into another.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..attention import sites
from ..attention.call import AttentionCall
from ..attention.shapes import HeadOutput, ModelShape, Unchanged, alike
from ..attention.sites import Edit, Read, Site
from ..checks import instance_of
from .operations import Apply, Keep, NotGiven, Operation
from .selectors import InLayers, OnHeads, OnKVHeads, OnPairs


@dataclass(frozen=True)
class Change(InLayers):
    """`operation` on chosen positions and dimensions, in chosen layers; all by default.

    A function of the activations, `[head] pos d` behind the sequences, is an operation too.
    A control is drawn for the narrowest of the selectors: dimensions, else positions, else heads, else layers.
    """

    operation: Operation = NotGiven()
    positions: Iterable[int] | None = field(default=None, kw_only=True)
    dims: Iterable[int] | None = field(default=None, kw_only=True)
    site: ClassVar[Site]

    def __init_subclass__(cls, site: Site | None = None) -> None:
        super().__init_subclass__()
        if site is not None:
            cls.site = site
            setattr(cls, site.method.__name__, Change._at_site)

    def __post_init__(self) -> None:
        if not isinstance(self.operation, Operation | type) and callable(self.operation):
            object.__setattr__(self, "operation", Apply(self.operation))
        super().__post_init__()

    def choices(self, shape: ModelShape, length: int) -> Mapping[str, Sequence[Any]]:
        own = {"dims": range(self._width(shape, length)), "layers": self.site.layers(shape)}
        return {**super().choices(shape, length), **own}

    def check(self, shape: ModelShape, length: int) -> None:
        super().check(shape, length)
        self.operation.check(length)

    def check_site(self, shape: ModelShape, length: int) -> None:
        """Raises InputError where the model, or sequences of this length, lack a chosen place."""
        replace(self, operation=Keep()).check(shape, length)

    def check_sequences(self, count: int) -> None:
        self.operation.check_sequences(count)

    def for_sequences(self, chosen: Int[Tensor, " sequence"]) -> Edit:
        operation = self.operation.for_sequences(chosen)
        return self if operation is self.operation else replace(self, operation=operation)

    def read(self) -> Read:
        """The read of the activations that the edit changes.

        Raises InputError for embeddings, which are not read, and for an operation, which reading would leave out.
        """
        instance_of(self.operation, Keep, "a site is where something is read or put, and has no operation")
        return self.site.read(self.activations)

    def activations(self, shown: Any) -> Tensor:
        """The activations that the edit changes, from what a read of its site is shown."""
        return shown

    def _width(self, shape: ModelShape, length: int) -> int:
        return shape.d_model

    def _at_site(self, *place: Any) -> Tensor:
        """What is at the site after the change. place: the layer, if the site has layers, and what is there."""
        *layer, x = place
        return self._changed(layer[0] if layer else 0, x)

    def _changed(self, layer: int, x: Tensor, heads: Bool[Tensor, " head"] | None = None) -> Tensor:
        if not self.acts_in(layer):
            return x
        who = type(self.operation).__name__
        new = alike(Unchanged(x).shown_to(self.operation, who, layer), x, who)
        if new is x or (heads is None and self.positions is None and self.dims is None):
            return new
        chosen = _mask(self.positions, x.shape[-2], x.device)[:, None] & _mask(self.dims, x.shape[-1], x.device)
        return torch.where(chosen if heads is None else chosen & heads.to(x.device)[:, None, None], new, x)


def _mask(chosen: Iterable[int] | None, size: int, device: torch.device) -> Bool[Tensor, " size"]:
    mask = torch.full((size,), chosen is None, device=device)
    mask[list(chosen or ())] = True
    return mask


class ChangeTokenEmbedding(Change, site=sites.TOKEN_EMBEDDING):
    """`operation` on what the table of tokens returns; its layer is 0."""

    def _width(self, shape: ModelShape, length: int) -> int:
        return shape.d_embedding or shape.d_model


class ChangePositionEmbedding(Change, site=sites.POSITION_EMBEDDING):
    """`operation` on what the table of learned positions returns; its layer is 0."""


class ChangeResidual(Change, site=sites.RESIDUAL):
    """`operation` on the inputs of blocks `layers`; `n_layers` is the output of the last."""


class ChangeAttentionInput(Change, site=sites.ATTENTION_INPUT):
    """`operation` on what attention layers read: the residual behind the norm before them."""


class ChangeNeurons(Change, site=sites.NEURONS):
    """`operation` on what the activations of feed-forward layers return, times their gates; `dims` are neurons."""

    def _width(self, shape: ModelShape, length: int) -> int:
        return shape.d_mlp or 0


class ChangeMLP(Change, site=sites.MLP):
    """`operation` on what the feed-forward layers of blocks `layers` add to the residual stream."""


@dataclass(frozen=True)
class _ChangeHeads(Change, OnPairs):
    """The same for heads."""

    site: ClassVar[Site] = sites.CALL

    def _width(self, shape: ModelShape, length: int) -> int:
        return shape.d_head

    def _changed_heads(
        self, layer: int, x: Float[Tensor, "batch any_head pos d"]
    ) -> Float[Tensor, "batch any_head pos d"]:
        return self._changed(layer, x, None if self.pairs is None else self.head_mask(layer, x.shape[1]))


@dataclass(frozen=True)
class _ChangeInCall(_ChangeHeads):
    """The same for one tensor of the call: its field `part`."""

    part: ClassVar[str]

    def call(self, call: AttentionCall) -> AttentionCall:
        if not self.acts_in(call.layer):
            return call
        old, past = _with_past(call, self.activations(call))
        new = self._changed_heads(call.layer, old)
        return call if new is old else self._with(call, new[:, :, past:])

    def activations(self, shown: AttentionCall) -> Tensor:
        return getattr(shown, self.part)

    def _with(self, call: AttentionCall, new: Tensor) -> AttentionCall:
        changed: dict[str, Any] = {self.part: new}
        return replace(call, **changed)


@dataclass(frozen=True)
class ChangeQueries(_ChangeInCall, OnHeads):
    """`operation` on queries, after norms and rotation."""

    part = "q"


@dataclass(frozen=True)
class ChangeKeys(_ChangeInCall, OnKVHeads):
    """`operation` on keys, after norms and rotation."""

    part = "k"


@dataclass(frozen=True)
class ChangeValues(_ChangeInCall, OnKVHeads):
    """`operation` on values."""

    part = "v"

    def _width(self, shape: ModelShape, length: int) -> int:
        return shape.d_value or shape.d_head


@dataclass(frozen=True)
class ChangePattern(_ChangeInCall, OnHeads):
    """`operation` on attention weights; positions are queries, dimensions keys. For small T.

    The operation is given complete rows; weights of keys that a query cannot see are dropped. If there is a
    slot, its column is the first; it is changed where no keys are named.
    """

    def call(self, call: AttentionCall) -> AttentionCall:
        return super(ChangePattern, self._behind_slot(call)).call(call)

    def activations(self, shown: AttentionCall) -> Tensor:
        return shown.pattern()

    def _with(self, call: AttentionCall, new: Tensor) -> AttentionCall:
        slot, keys = new.split((new.shape[-1] - call.k.shape[2], call.k.shape[2]), -1)
        new = torch.cat((slot, keys * call.allowed()), -1)
        return call.with_pattern(new, self.head_mask(call.layer, call.q.shape[1]).to(new.device))

    def _width(self, shape: ModelShape, length: int) -> int:
        return length

    def _behind_slot(self, call: AttentionCall) -> "ChangePattern":
        if call.slot is None or self.dims is None:
            return self
        return replace(self, dims=[key + 1 for key in self.dims])


@dataclass(frozen=True)
class ChangeOutputs(_ChangeHeads, OnHeads):
    """`operation` on what heads return, before a gate multiplies it and before heads are mixed."""

    site = sites.OUTPUT

    def _width(self, shape: ModelShape, length: int) -> int:
        return shape.d_value or shape.d_head

    def output(self, call: AttentionCall, z: HeadOutput) -> HeadOutput:
        return self._changed_heads(call.layer, z)


AT: Mapping[Site, type[Change]] = {  # by sites whose activations are changed as a whole
    kind.site: kind for kind in (ChangeResidual, ChangeAttentionInput, ChangeOutputs, ChangeNeurons, ChangeMLP)
}


def _with_past(
    call: AttentionCall, x: Float[Tensor, "batch any_head some_pos d"]
) -> tuple[Float[Tensor, "batch any_head pos d"], int]:
    """`x` behind NaN for the `past` positions that only keys and values have, so that it counts from 0; and `past`."""
    past = call.k.shape[2] - x.shape[2]
    return torch.cat((x.new_full((*x.shape[:2], past, x.shape[3]), torch.nan), x), 2) if past else x, past
