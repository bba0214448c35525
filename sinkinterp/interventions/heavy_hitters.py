"""Heavy hitters: a rolling cache that keeps the keys that received most attention beside the last ones (H2O)."""

from dataclasses import dataclass, replace
from enum import Enum

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from typing_extensions import override

from ..attention.call import AttentionCall
from ..attention.sites import Edit
from ..checks import whole_number
from ..errors import InputError


class First(Enum):
    """What becomes of the first token: it is judged like any other, always kept, or evicted when it is not recent."""

    JUDGED = "judged"
    KEPT = "kept"
    EVICTED = "evicted"


@dataclass(frozen=True)
class KeepHeaviest(Edit):
    """The mask of a cache of `window` tokens: the last `window - heavy` ones, and the `heavy` heaviest before them.

    A key's weight is the attention that it has received while it was in the cache, summed over the queries and over
    the heads that share it. What is evicted does not come back (H2O, arXiv:2306.14048). With a `seed` the weight is a
    random number for each sequence, kv head and key: the control of equal memory. Positions stay those of the text.
    Raises InputError unless the window is wider than `heavy`, and for fewer than one heavy token where the first is
    always kept.
    """

    window: int
    heavy: int
    first: First = First.JUDGED
    seed: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seed is not None:
            whole_number(self.seed, "seed of KeepHeaviest", 0, 2**63 - 1)
        least = 1 if self.first is First.KEPT else 0
        whole_number(self.heavy, f"in a cache of {self.window} tokens the number of heavy ones", least, self.window - 1)

    @override
    def call(self, call: AttentionCall) -> AttentionCall:
        if call.q.shape[2] != call.k.shape[2]:
            raise InputError("heavy hitters are counted over whole texts; give all tokens in one pass")
        group = call.q.shape[1] // call.k.shape[1]
        scores = call.scores().float().masked_fill(~call.allowed(), -torch.inf).unflatten(1, (-1, group))
        kept = self._kept(scores).repeat_interleave(group, 1)
        return replace(call, mask=torch.logical_and(call.allowed(), kept))

    def _kept(self, scores: Float[Tensor, "batch kv_head group query key"]) -> Bool[Tensor, "batch kv_head query key"]:
        """Which keys are in the cache of every query; the queries come one after the other."""
        cached = torch.zeros_like(scores[:, :, 0, 0], dtype=torch.bool)
        weight = torch.zeros(cached.shape)
        if self.seed is not None:
            weight = torch.rand(cached.shape, generator=torch.Generator().manual_seed(self.seed))
        weight, rows = weight.to(scores.device), []
        for query in range(scores.shape[-1]):
            cached[..., query] = True
            if query >= self.window:
                cached = self._without_lightest(cached, weight, query)
            rows.append(cached.clone())
            if self.seed is None:
                seen = scores[..., query, :].masked_fill(~cached[:, :, None], -torch.inf)
                weight += seen.softmax(-1).nan_to_num(0).sum(2)
        return torch.stack(rows, 2)

    def _without_lightest(
        self, cached: Bool[Tensor, "batch kv_head key"], weight: Float[Tensor, "batch kv_head key"], query: int
    ) -> Bool[Tensor, "batch kv_head key"]:
        """The cache after one key is evicted: the lightest of those that are not recent."""
        value = weight.masked_fill(~cached, torch.inf)
        value[..., query - (self.window - self.heavy) + 1 :] = torch.inf
        if self.first is not First.JUDGED and cached[..., 0].any():
            value[..., 0] = torch.inf if self.first is First.KEPT else -torch.inf
        return cached.scatter(-1, value.argmin(-1, keepdim=True), False)
