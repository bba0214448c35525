"""AttentionCall: what one attention operation consumes, in every architecture and every backend.

`call_of_interface` makes it of the arguments of transformers' attention interface.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..errors import InputError
from .kernels import SOFTMAX, Kernel
from .masks import ALL
from .scoring import Scoring
from .shapes import (
    Allowed,
    HeadOutput,
    KeyIndex,
    KeyMass,
    Keys,
    Pattern,
    PerQuery,
    Queries,
    SomeAllowed,
    SomePairs,
    Values,
)
from .slots import SinkLogit, Slot, SlotRow
from .weights import KernelWeights, SetPattern


@dataclass(frozen=True, repr=False)
class AttentionCall:
    """Queries, keys and values after norms and rotation; keys are not repeated for grouped queries.

    layer: index among all blocks of the model.
    mask: pairs that may attend; None is causal, the last query aligned with the last key.
    bias: added to the scaled scores (ALiBi, T5), a function of the distance between query and key.
    softcap: scores become softcap * tanh(score / softcap).
    slot: a column left of the first key that belongs to no token.
    set_pattern: weights that an edit set, in place of those that the kernel computes; see `with_pattern`.

    Edits change a call by `dataclasses.replace`. Where the pattern was set, replacing anything that scores are made of
    raises InputError.
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
    set_pattern: SetPattern | None = None

    def __repr__(self) -> str:
        batch, n_heads, n_queries, d_head = self.q.shape
        heads = f"{n_heads} heads ({self.k.shape[1]} kv) of {d_head}"
        return f"<AttentionCall of layer {self.layer}: {batch} x {n_queries} queries, {self.k.shape[2]} keys, {heads}>"

    def __post_init__(self) -> None:
        if self.set_pattern is not None:
            self.set_pattern.check_replaces(self)

    def with_pattern(self, weights: Pattern | None, heads: Bool[Tensor, " head"] | None = None) -> "AttentionCall":
        """The call with these weights, dense, the slot's column first; with None, with those its kernel computes.

        heads: those whose weights differ from the call's; default all. Scores of the others can still be edited.
        Raises InputError for weights of another shape than the call's pattern, on keys that are masked, or not finite.
        """
        if weights is None:
            return replace(self, set_pattern=None)
        if not isinstance(weights, Tensor):
            raise InputError(f"a pattern is a tensor of weights; got a {type(weights).__name__}")
        if self.set_pattern is not None:
            heads = self.set_pattern.also(heads)
        if not weights.isfinite().all():
            fix = 'numbers of float16 end at 65,504: load it with dtype="bfloat16" or dtype="float32"'
            raise InputError(f"weights of layer {self.layer} are not finite; {fix}")
        call = replace(self, set_pattern=SetPattern(self.layer, weights.float(), self.scoring, heads))
        if (weights[..., -self.k.shape[2] :] * ~self.allowed()).any():
            raise InputError("a query cannot see all these keys; multiply by call.allowed()")
        return call

    @cached_property
    def scoring(self) -> Scoring:
        """What the weights are made of."""
        return Scoring(**{field.name: getattr(self, field.name) for field in fields(Scoring)})

    @cached_property
    def _weights(self) -> KernelWeights | SetPattern:
        return KernelWeights(self.scoring, self.v) if self.set_pattern is None else self.set_pattern

    @property
    def keys(self) -> KeyIndex:
        """Indices of all keys."""
        return torch.arange(self.k.shape[2], device=self.k.device)

    def scores(self, keys: KeyIndex | None = None, rows: slice = ALL) -> SomePairs:
        """Scores of a run of queries with the chosen keys (default all), masked pairs included; fp32."""
        return self.scoring.scores(keys, rows)

    def allowed(self, keys: KeyIndex | None = None, rows: slice = ALL) -> SomeAllowed:
        """Which of a run of queries may attend to the chosen keys (default all)."""
        return self.scoring.visibility.allowed(keys, rows)

    def watchers(self, keys: KeyIndex) -> Int[Tensor, "#batch #head some_key"]:
        """How many queries can see each of the chosen keys."""
        return self.scoring.visibility.watchers(keys)

    def columns_seen(self) -> Int[Tensor, "#batch #head query"]:
        """How many columns each query can see, its slot included."""
        return self.scoring.visibility.n_visible + (self.slot is not None)

    def pattern(self) -> Pattern:
        """Dense attention weights, the slot's column first where there is a slot. For small T."""
        return self._weights.pattern()

    def pattern_without(self, columns: Bool[Tensor, " column"]) -> Pattern:
        """The pattern where some columns have no score. Up to a factor for each row, the others keep their weights.

        Their weights may be below what fp32 holds beside a column that is very strong. Of heads whose pattern
        an edit set, the columns become 0.
        """
        return self._weights.pattern_without(columns)

    def mix(self, pattern: Pattern) -> HeadOutput:
        """Values averaged by a pattern. A column before the first token's is the slot's."""
        tokens = pattern[..., -self.v.shape[2] :].unflatten(1, (self.v.shape[1], -1))
        z = torch.einsum("bkgij,bkjd->bkgid", tokens.to(self.v.dtype), self.v).flatten(1, 2)
        if isinstance(self.slot, SlotRow):
            z = z + torch.einsum("bhij,hjd->bhid", pattern[..., :1].to(z.dtype), self.slot.value.to(z.dtype))
        return z

    def output(self) -> HeadOutput:
        """What the heads return, by a fused kernel where one computes the same thing."""
        z = self._weights.fused_output()
        return self.mix(self.pattern()) if z is None else z

    @property
    def is_fused(self) -> bool:
        """Whether `output` and `log_normaliser` come from one fused kernel."""
        return self._weights.is_fused

    @property
    def is_normalised(self) -> bool:
        """Whether rows of the pattern are non-negative and sum to one, slots counted."""
        return self._weights.is_normalised

    def proxy(self) -> "AttentionCall":
        """The call whose weights are |w| / sum |w|, slots counted."""
        if self.set_pattern is None and not self.kernel.clips:
            return replace(self, kernel=self.kernel.proxy)
        dense = self if self.set_pattern is not None else self.with_pattern(self.pattern())
        assert dense.set_pattern is not None
        return dense.with_pattern(dense.set_pattern.shares())

    def log_normaliser(self) -> PerQuery:
        """log Z of every row: what divides its weights. For softmax, the log-sum-exp of its scores; fp32.

        Raises InputError where an edit set the pattern.
        """
        return self._weights.log_normaliser().clone()  # the other is kept for all weights

    def weights_at(self, keys: KeyIndex | None = None, rows: slice = ALL) -> SomePairs:
        """Attention of a run of queries to the chosen keys (default all), without the rest of the pattern."""
        return self._weights.at(keys, rows)

    def slot_weights(self) -> PerQuery | None:
        """Every query's attention to the slot; None without a slot."""
        return self._weights.of_slot()

    def column_mass(self, keys: KeyIndex | None = None) -> KeyMass:
        """Attention that each chosen key (default all) receives, summed over queries; no T x T map is made."""
        return self._weights.column_mass(self.keys if keys is None else keys)

    def slot_mass(self) -> Float[Tensor, "batch head"]:
        """Attention that the slot receives, summed over queries; 0 without a slot."""
        weights = self.slot_weights()
        return self.q.new_zeros(self.q.shape[:2]).float() if weights is None else weights.sum(2)


def call_of_interface(
    layer: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None, **extra: Any
) -> AttentionCall:
    """The call that transformers' attention interface was asked to compute.

    An additive mask is split into the pairs that it forbids and the bias that it adds to the others. `is_causal` in
    `extra` (see `is_causal_call`) says what no mask means: without it, or where it is true, queries see no later key;
    where it is false, they see all keys. `key_bias` in `extra` is a bias with one row for all queries; see
    `relative_to_own_key`.
    """
    bias = extra.get("position_bias")
    if bias is None and extra.get("key_bias") is not None:
        bias = relative_to_own_key(extra["key_bias"], q.shape[2])
    if mask is None and extra.get("is_causal") is False:
        mask = torch.ones(1, 1, q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
        bias = None if bias is None or not bias.any() else bias  # T5's cross-attention adds zeros
    if mask is not None and mask.dtype != torch.bool:
        allowed = mask > torch.finfo(mask.dtype).min / 2
        added = mask.masked_fill(~allowed, 0)
        bias = added if bias is None else bias + added
        mask, bias = allowed, bias if bias.any() else None
    logits = extra.get("s_aux")
    return AttentionCall(
        layer,
        q,
        k,
        v,
        scale=q.shape[-1] ** -0.5 if scale is None else scale,
        mask=mask,
        bias=bias,
        softcap=extra.get("softcap"),
        slot=extra.get("slot") if logits is None else SinkLogit(logits),
        kernel=extra.get("kernel") or SOFTMAX,
    )


def relative_to_own_key(
    bias: Float[Tensor, "#batch #head 1 key"], n_queries: int
) -> Float[Tensor, "#batch #head query key"]:
    """A bias of keys, less that of the query's own key; the last query is aligned with the last key.

    Transformers stores ALiBi, -m(i - j), up to a constant for each query: m j, or m(j - T + 1). Softmax does not see
    the constant. Sigmoid does, and a sink logit does.
    """
    bias = bias if bias.dtype == torch.float64 else bias.float()
    return bias - bias[..., bias.shape[-1] - n_queries :].mT


def is_causal_call(module: Any, extra: Mapping[str, Any]) -> bool:
    """Whether an attention module that gives the interface no mask means causal attention, as transformers decides it.

    extra: the keyword arguments of the interface.
    """
    is_causal = extra.get("is_causal")
    return bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
