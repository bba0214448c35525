"""Scoring: the inputs of one attention operation, the scores of queries with keys, and which pairs may attend.

`AttentionCall` in `call.py` adds the weights and the output.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .kernels import SOFTMAX, Kernel
from .masks import ALL, QueryRun, Visibility
from .shapes import Allowed, KeyIndex, Keys, Pattern, Queries, SomeAllowed, SomePairs, Values
from .slots import Slot


@dataclass(frozen=True, eq=False, repr=False)
class Scoring:
    """Queries, keys and values after norms and rotation; keys are not repeated for grouped queries.

    layer: index among all blocks of the model.
    mask: pairs that may attend; None is causal, the last query aligned with the last key.
    bias: added to the scaled scores (ALiBi, T5), a function of the distance between query and key.
    softcap: scores become softcap * tanh(score / softcap).
    slot: a column left of the first key that belongs to no token.
    """

    layer: int
    q: Queries
    k: Keys
    v: Values
    scale: float
    mask: Allowed | None = None
    bias: Float[Tensor, "#batch #head query key"] | None = None
    softcap: float | None = None
    slot: Slot = None
    kernel: Kernel = SOFTMAX

    @property
    def keys(self) -> KeyIndex:
        """Indices of all keys."""
        return torch.arange(self.k.shape[2], device=self.k.device)

    @cached_property
    def visibility(self) -> Visibility:
        """Which keys each query may attend to."""
        return Visibility(self.q.shape[2], self.k.shape[2], self.q.device, self.mask)

    def allowed(self, keys: KeyIndex | None = None, rows: slice = ALL) -> SomeAllowed:
        """Which of a run of queries may attend to the chosen keys (default all)."""
        return self.visibility.allowed(keys, rows)

    def watchers(self, keys: KeyIndex) -> Int[Tensor, "#batch #head some_key"]:
        """How many queries can see each of the chosen keys."""
        return self.visibility.watchers(keys)

    def columns_seen(self) -> Int[Tensor, "#batch #head query"]:
        """How many columns each query can see, its slot included."""
        return self.visibility.n_visible + (self.slot is not None)

    def queries(self, rows: slice = ALL) -> QueryRun:
        """What the kernel may know of a run of queries besides their scores."""
        return QueryRun(self.visibility, rows)

    def scores(self, keys: KeyIndex | None = None, rows: slice = ALL) -> SomePairs:
        """Scores of a run of queries with the chosen keys (default all), masked pairs included.

        The tensor is new and has at least fp32.
        """
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

    def computed_pattern(self, hidden: Bool[Tensor, " column"] | None = None) -> Pattern:
        """The weights that the kernel computes from all scores, with gradients; a slot's column comes first.

        hidden: columns that get no weight, as if no query saw them; default none.
        """
        scores, allowed, slot = self.scores(), self.allowed(), self.slot_scores()
        if slot is not None:
            scores = torch.cat((slot, scores), -1)
            allowed = F.pad(allowed, (1, 0), value=True)
        if hidden is not None:
            allowed = allowed & ~hidden
        return self.kernel.pattern(scores, allowed, self.queries())


def _at_least_fp32(x: Tensor) -> Tensor:
    """Half precision is not enough for scores; fp64 stays, for exact comparisons."""
    return x if x.dtype == torch.float64 else x.float()
