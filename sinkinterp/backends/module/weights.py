"""Finds which linear operations of a module make the queries, keys and values of each head."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from ...attention.call import AttentionCall
from ...attention.sites import WEIGHT_SITES
from ..anatomy.projections import HeadMap, Linear, Rows
from .listening import SDPA, Listener, Place


class Tracing(Listener):
    """A mode that finds what makes queries, keys and values: `found`, the place of a linear operation for each.

    layers: the block of each attention call. Left out are those that are not one operation with d_head rows for each
    head. Gradients tell: rows of a head are those that its queries, keys or values depend on.
    """

    def __init__(self, name: str, layers: tuple[int, ...]) -> None:
        super().__init__(name, {F.linear})
        self.layers = layers
        self.found: list[tuple[Place, HeadMap]] = []
        self._made: list[tuple[Place, Tensor]] = []  # what operations returned since the last attention call

    @override
    def operate(self, place: Place, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        self._made.append((place, F.linear(*args, **kwargs).detach().requires_grad_()))
        return self._made[-1][1].clone()  # which may be changed in place

    @override
    def attend(self, call: AttentionCall, *args: Any, **kwargs: Any) -> Tensor:
        self.found += self._maps(call) if self._made else ()
        self._made.clear()
        return SDPA(*args, **kwargs)

    def _maps(self, call: AttentionCall) -> Iterator[tuple[Place, HeadMap]]:
        made = {
            site: torch.stack([self._used(head) for head in x.unbind(1)])
            for site, x in zip(WEIGHT_SITES, (call.q, call.k, call.v), strict=True)
            if x.requires_grad
        }
        uses = torch.stack([used.sum(0) for used in made.values()]).sum(0) if made else torch.empty(0)
        ends = torch.tensor([y.shape[-1] for _, y in self._made]).cumsum(0)
        for site, used in made.items():
            columns = used.any(0).nonzero()[:, 0].cpu()
            numbers = torch.searchsorted(ends, columns, right=True)
            is_one = len(numbers) and bool((numbers == numbers[0]).all())
            if is_one and (uses[columns] == 1).all() and len(set(used.sum(1).tolist())) == 1:
                place, y = self._made[int(numbers[0])]
                rows = used.nonzero()[:, 1].view(len(used), -1) - int(ends[numbers[0]]) + y.shape[-1]
                yield place, HeadMap(self.layers[self.n_attended], site, partial(_known, rows))

    def _used(self, head: Tensor) -> Tensor:
        """Which rows of the maps, one after the other, a head depends on."""
        weights = torch.linspace(1, 2, head.numel(), device=head.device, dtype=head.dtype).view_as(head)
        made = [y for _, y in self._made]
        found = torch.autograd.grad((head * weights).sum(), made, retain_graph=True, materialize_grads=True)
        return torch.cat([gradient.flatten(0, -2).any(0) for gradient in found])


def _known(rows: Rows, width: int) -> Rows:
    return rows


def linear_that_ran(y: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Linear:
    """What `F.linear` computed for its arguments, which are named as torch names them; `y` is what it returned."""
    return Linear(input, y, lambda: weight, bias)
