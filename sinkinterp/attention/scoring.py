"""Scoring: the scores of queries with keys, which of them may attend, and the dense pattern that they give."""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .kernels import Kernel
from .masks import ALL, QueryRun, Visibility
from .shapes import Allowed, KeyIndex, Keys, Pattern, Queries, SomePairs
from .slots import Slot


@dataclass(frozen=True, eq=False)
class Scoring:
    """Everything that attention weights are made of; the fields are those of `AttentionCall`."""

    q: Queries
    k: Keys
    scale: float
    mask: Allowed | None
    bias: Float[Tensor, "#batch #head query key"] | None
    softcap: float | None
    slot: Slot
    kernel: Kernel

    @cached_property
    def visibility(self) -> Visibility:
        """Which keys each query may attend to."""
        return Visibility(self.q.shape[2], self.k.shape[2], self.q.device, self.mask)

    def queries(self, rows: slice = ALL) -> QueryRun:
        """What the kernel may know of a run of queries besides their scores."""
        return QueryRun(self.visibility, rows)

    def scores(self, keys: KeyIndex | None = None, rows: slice = ALL) -> SomePairs:
        """Scores of some queries with the chosen keys (default all), masked ones too; a new tensor, at least fp32."""
        k = self.k if keys is None else self.k[:, :, keys]
        k = self.kernel.feature(_at_least_fp32(k))
        q = self.scaled_queries[:, :, rows].unflatten(1, (k.shape[1], -1))  # batch kv_head group query d_head
        scores = torch.einsum("bkrd,bkjd->bkrj", q.flatten(2, 3), k).unflatten(2, q.shape[2:4]).flatten(1, 2)
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if self.bias is not None:
            bias = self.bias[..., rows, :]
            scores = scores + (bias if keys is None else bias[..., keys])
        return scores

    @cached_property
    def scaled_queries(self) -> Queries:
        """Queries after the feature map, times the scale; at least fp32."""
        return self.kernel.feature(_at_least_fp32(self.q)) * self.scale

    def slot_scores(self) -> Float[Tensor, "batch head query 1"] | None:
        """Scores of every query with the slot; None without a slot."""
        return None if self.slot is None else self.slot.scores(self.kernel.feature(_at_least_fp32(self.q)), self.scale)

    def pattern(self, hidden: Bool[Tensor, " column"] | None = None) -> Pattern:
        """Attention weights of all queries, dense; the slot's column comes first where there is a slot. For small T.

        It has gradients under any kernel. hidden: columns that get no weight, as if no query saw them; default none.
        """
        scores, allowed, slot = self.scores(), self.visibility.allowed(), self.slot_scores()
        if slot is not None:
            scores = torch.cat((slot, scores), -1)
            allowed = torch.nn.functional.pad(allowed, (1, 0), value=True)
        if hidden is not None:
            allowed = allowed & ~hidden
        return self.kernel.pattern(scores, allowed, self.queries())


def _at_least_fp32(x: Tensor) -> Tensor:
    """Half precision is not enough for scores; fp64 stays, for exact comparisons."""
    return x if x.dtype == torch.float64 else x.float()
