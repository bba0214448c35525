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
    """Of a linear map the `d_head` rows of every head: the first head's begin at `first`, the next `step` further."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    n_heads: int
    d_head: int
    first: int
    step: int

    def weights(self) -> HeadWeights:
        """The rows, as views of the parameters as they are now."""
        weight, bias = (
            x if x is None else x[self.first :].unfold(0, self.d_head, self.step)[: self.n_heads].movedim(-1, 1)
            for x in (self.weight, self.bias)
        )
        assert weight is not None
        return HeadWeights(weight, bias)


class Tracing(Listener):
    """A mode that finds what makes queries, keys and values: `found`, three for each attention call.

    None stands where that is not one linear map of the module's parameters with d_head rows for each head. Gradients
    tell: rows of a head are those that its queries, keys or values depend on. uses: how often each weight is used.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, {F.linear})
        self.found: list[list[Rows | None]] = []
        self.uses: Counter[int] = Counter()
        self._maps: list[tuple[Tensor, Any, Any]] = []  # since the last attention call: what one returns, its weights

    @override
    def operate(self, place: Place, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        x, weight, bias, *_ = (*args, *kwargs.values(), None)
        self._maps.append((F.linear(x, weight, bias).detach().requires_grad_(), weight, bias))
        self.uses[id(weight)] += 1
        return self._maps[-1][0].clone()  # which may be changed in place

    @override
    def attend(self, call: AttentionCall, *args: Any, **kwargs: Any) -> Tensor:
        self.found.append([self._rows(x) if self._maps and x.requires_grad else None for x in (call.q, call.k, call.v)])
        self._maps.clear()
        return SDPA(*args, **kwargs)

    def rows(self, call: int, part: int) -> Rows | None:
        """What makes the queries (part 0), keys (1) or values (2) of an attention call, and nothing else."""
        rows = self.found[call][part]
        return rows if rows is not None and self.uses[id(rows.weight)] == 1 else None

    def _rows(self, x: Tensor) -> Rows | None:
        n_heads, d_head = x.shape[1], x.shape[3]
        heads = torch.stack([self._used(head) for head in x.unbind(1)])
        parts = heads.split([made.shape[-1] for made, *_ in self._maps], 1)
        used = [i for i, part in enumerate(parts) if part.any()]
        if len(used) != 1:
            return None
        (_, weight, bias), rows = self._maps[used[0]], parts[used[0]].nonzero()[:, 1].tolist()
        first, step = rows[0], rows[d_head] - rows[0] if len(rows) > d_head else d_head
        are_regular = rows == [first + head * step + i for head in range(n_heads) for i in range(d_head)]
        are_parameters = isinstance(weight, nn.Parameter) and isinstance(bias, nn.Parameter | None)
        is_map = are_regular and are_parameters and step > 0
        return Rows(weight, bias, n_heads, d_head, first, step) if is_map else None

    def _used(self, head: Tensor) -> Tensor:
        """Which rows of the maps, one after the other, a head depends on."""
        weights = torch.linspace(1, 2, head.numel(), device=head.device, dtype=head.dtype).view_as(head)
        maps = [made for made, *_ in self._maps]
        found = torch.autograd.grad((head * weights).sum(), maps, retain_graph=True, materialize_grads=True)
        return torch.cat([gradient.flatten(0, -2).any(0) for gradient in found])
