"""Change: the base of interventions that do any operation at one site."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ..attention.model_shape import ModelShape
from ..errors import InputError
from .edit import Edit, Reads, Site
from .operations import Keep, Operation
from .selectors import InLayers, check_chosen, draw_others, store_chosen


@dataclass(frozen=True)
class Change(InLayers):
    """`operation` on chosen positions and dimensions, in chosen layers; all by default.

    A control is drawn for the narrowest of the selectors: dimensions, else positions, else heads, else layers.
    """

    operation: Operation = Keep()
    positions: Iterable[int] | None = field(default=None, kw_only=True)
    dims: Iterable[int] | None = field(default=None, kw_only=True)
    site: ClassVar[Site]

    def __post_init__(self) -> None:
        super().__post_init__()
        store_chosen(self, "positions", "dims")

    def check(self, shape: ModelShape, length: int) -> None:
        super().check(shape, length)
        check_chosen(self.positions, range(length), "position")
        check_chosen(self.dims, range(self._width(shape, length)), "dimension")
        self.operation.check(length)

    def control(self, shape: ModelShape, length: int, generator: torch.Generator) -> Edit:
        if self.dims is not None:
            return draw_others(self, "dims", range(self._width(shape, length)), generator)
        if self.positions is not None:
            return draw_others(self, "positions", range(length), generator)
        return super().control(shape, length, generator)

    def for_rows(self, rows: Int[Tensor, " sequence"]) -> Edit:
        operation = self.operation.for_rows(rows)
        return self if operation is self.operation else replace(self, operation=operation)

    def layers_of(self, shape: ModelShape) -> Sequence[int]:
        return self.site.layers(shape)

    def reads(self, name: str) -> Reads:
        """The keyword of `Subject.run` that reads, under this name, the activations that the edit changes.

        Raises InputError for embeddings, which are not read.
        """
        if self.site.reads is None:
            raise InputError(
                f"{type(self).__name__} is not read; take ChangeResidual(layers=[0]), which both tables make"
            )
        return self.site.reads(name, self.activations)

    def activations(self, shown: Any) -> Tensor:
        """The activations that the edit changes, from what a read of its site is shown."""
        return shown

    def _width(self, shape: ModelShape, length: int) -> int:
        return shape.d_model

    def _changed(self, layer: int, x: Tensor, heads: Bool[Tensor, " head"] | None = None) -> Tensor:
        if not self.acts_in(layer):
            return x
        new = self.operation(layer, x)
        if new is x or (heads is None and self.positions is None and self.dims is None):
            return new
        chosen = _mask(self.positions, x.shape[-2], x.device)[:, None] & _mask(self.dims, x.shape[-1], x.device)
        return torch.where(chosen if heads is None else chosen & heads.to(x.device)[:, None, None], new, x)


def _mask(chosen: Iterable[int] | None, size: int, device: torch.device) -> Bool[Tensor, " size"]:
    mask = torch.full((size,), chosen is None, device=device)
    mask[list(chosen or ())] = True
    return mask
