"""Finds which rows of a module's linear maps make the queries, keys and values of each head."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from ...attention.call import AttentionCall
from ...interventions.edit import HeadWeights
from .listening import SDPA, Listener, Place


@dataclass(frozen=True)
class Rows:
    """Of a linear map the rows from `first` on, `d_head` for each head; `step` is the distance between heads."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    n_heads: int
    d_head: int
    first: int
    step: int

    def weights(self) -> HeadWeights:
        """The rows, as views of the parameters as they are now."""
        return HeadWeights(self._of(self.weight), None if self.bias is None else self._of(self.bias))

    def _of(self, x: Tensor) -> Tensor:
        rows = x[self.first :].unfold(0, self.d_head, self.step)[: self.n_heads]  # head, (d_model,) d_head
        return rows.movedim(-1, 1)


class Tracing(Listener):
    """A mode that finds what makes queries, keys and values: `found`, three for each attention call.

    None stands where that is not one linear map of the module's parameters, used once, with the same number of rows for
    each head. Gradients tell: rows of a head are those that its queries, keys or values depend on.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, {F.linear})
        self.found: list[list[Rows | None]] = []
        self.uses: Counter[int] = Counter()
        self._made: list[tuple[Tensor, Any, Any]] = []

    @override
    def operate(self, place: Place, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        x, weight, bias, *_ = (*args, *kwargs.values(), None)
        made = F.linear(x, weight, bias).detach().requires_grad_()
        self._made.append((made, weight, bias))
        self.uses[id(weight)] += 1
        return made.clone()  # which may be changed in place

    @override
    def attend(self, call: AttentionCall, *args: Any, **kwargs: Any) -> Tensor:
        self.found.append([self._rows(x) for x in (call.q, call.k, call.v)])
        self._made.clear()
        return SDPA(*args, **kwargs)

    def rows(self, call: int, part: int) -> Rows | None:
        """What makes the queries (part 0), keys (1) or values (2) of an attention call."""
        rows = self.found[call][part]
        return rows if rows is not None and self.uses[id(rows.weight)] == 1 else None

    def _rows(self, x: Tensor) -> Rows | None:
        heads = [self._rows_of(head) for head in x.unbind(1)] if x.requires_grad else [None]
        places = [head for head in heads if head is not None]
        made, firsts = {made for made, _ in places}, [first for _, first in places]
        step = firsts[1] - firsts[0] if len(firsts) > 1 else x.shape[3]
        is_regular = firsts == [places[0][1] + i * step for i in range(len(heads))] if places and step > 0 else False
        if len(made) != 1 or not is_regular:
            return None
        _, weight, bias = self._made[made.pop()]
        are_parameters = isinstance(weight, nn.Parameter) and isinstance(bias, nn.Parameter | None)
        return Rows(weight, bias, len(heads), x.shape[3], firsts[0], step) if are_parameters else None

    def _rows_of(self, head: Tensor) -> tuple[int, int] | None:
        """Which linear map makes a head, and its first row; None unless it is made of d_head rows of one map."""
        weights = torch.linspace(1, 2, head.numel(), device=head.device).view_as(head)
        maps = [made for made, *_ in self._made]
        gradients = torch.autograd.grad((head * weights).sum(), maps, retain_graph=True, allow_unused=True)
        used = {i: g.flatten(0, -2).any(0).nonzero().flatten() for i, g in enumerate(gradients) if g is not None}
        used = {i: rows for i, rows in used.items() if len(rows)}
        if len(used) != 1:
            return None
        [(made, rows)] = used.items()
        is_run = len(rows) == head.shape[-1] == int(rows[-1] - rows[0]) + 1
        return (made, int(rows[0])) if is_run else None
