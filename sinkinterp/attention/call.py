"""AttentionCall: the inputs, scores, weights and output of one attention operation, in every architecture and backend.

`fused.py` has the fields of its inputs, and computes the output without a T x T map. `call_of_interface` makes a call
of the arguments of transformers' attention interface.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..checks import InputError, instance_of, refusing
from . import fused
from .fused import LONG, Attended, Inputs
from .kernels import SOFTMAX, SignedLog
from .masks import ALL, BLOCK, Visibility, key_blocks
from .shapes import HeadOutput, KeyIndex, KeyMass, Pattern, PerQuery, Queries, SomeAllowed, SomePairs
from .slots import SinkLogit, SlotRow

_SCORED = tuple(field.name for field in fields(Inputs) if field.name not in ("layer", "v"))


@dataclass(frozen=True, eq=False)
class SetPattern:
    """Dense weights of one layer that an edit set. For small T.

    weights: the slot's column comes first where there is a slot.
    replaced: the inputs from which other weights were computed.
    heads: those whose weights differ from the computed ones; None for all.
    """

    weights: Pattern
    replaced: Inputs
    heads: Bool[Tensor, " head"] | None = None

    def check_computes(self, heads: Bool[Tensor, " head"]) -> None:
        """Raises InputError unless the weights of these heads are still those that their scores give."""
        if self.heads is None or (self.heads & heads).any():
            raise self.lost()

    def lost(self) -> InputError:
        """The error of an edit of scores that no weight depends on any more."""
        return InputError(f"an edit before set the pattern of layer {self.replaced.layer}; give edits of scores first")


@dataclass(frozen=True, eq=False, repr=False)
class AttentionCall(Inputs):
    """The inputs of one attention operation (see `Inputs`), its scores, weights and output.

    set_pattern: weights that an edit set, in place of those that the kernel computes; see `with_pattern`.

    Edits change a call by `dataclasses.replace`. After an edit set the pattern, replacing anything that scores are made
    of raises InputError, since the weights no longer depend on it.
    """

    set_pattern: SetPattern | None = None

    def __repr__(self) -> str:
        batch, n_heads, n_queries, d_head = self.q.shape
        heads = f"{n_heads} heads ({self.k.shape[1]} kv) of {d_head}"
        return f"<AttentionCall of layer {self.layer}: {batch} x {n_queries} queries, {self.k.shape[2]} keys, {heads}>"

    def __post_init__(self) -> None:
        fixed = self.set_pattern
        if fixed and any(getattr(self, name) is not getattr(fixed.replaced, name) for name in _SCORED):
            raise fixed.lost()

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
        return self.kernel.pattern(scores, allowed)

    def with_pattern(self, weights: Pattern | None, heads: Bool[Tensor, " head"] | None = None) -> "AttentionCall":
        """The call with these weights, dense, the slot's column first; with None, with those its kernel computes.

        heads: those whose weights differ from the call's; default all. Scores of the others can still be edited.
        Raises InputError for weights of another shape than the call's pattern, on keys that are masked, or not finite.
        """
        if weights is None:
            return replace(self, set_pattern=None)
        self._check_pattern(instance_of(weights, Tensor, "a pattern is a tensor of weights"))
        replaced: Inputs = self
        if self.set_pattern is not None:
            replaced, before = self.set_pattern.replaced, self.set_pattern.heads
            heads = None if heads is None or before is None else before | heads
        return replace(self, set_pattern=SetPattern(weights.float(), replaced, heads))

    @refusing
    def _check_pattern(self, weights: Tensor) -> Iterator[str]:
        shape = (*self.q.shape[:3], self.k.shape[2] + (self.slot is not None))
        if tuple(weights.shape) != shape:
            yield f"a pattern of layer {self.layer} has the shape {shape}; got {tuple(weights.shape)}"
        if not weights.isfinite().all():
            is_half = torch.float16 in (self.q.dtype, weights.dtype)
            fix = 'float16 ends at 65,504: load it with dtype="bfloat16"' if is_half else "check what computes them"
            yield f"weights of layer {self.layer} are not finite; {fix}"
        if (weights[..., -self.k.shape[2] :] * ~self.allowed()).any():
            yield "a query cannot see all these keys; multiply by call.allowed()"

    def pattern(self) -> Pattern:
        """Dense attention weights, the slot's column first where there is a slot. For small T."""
        return self.computed_pattern() if self.set_pattern is None else self.set_pattern.weights

    def pattern_without(self, columns: Bool[Tensor, " column"]) -> Pattern:
        """The pattern where some columns have no score. Up to a factor for each row, the others keep their weights.

        Their weights may be below what fp32 holds beside a column that is very strong. Of heads whose pattern
        an edit set, the columns become 0.
        """
        if self.set_pattern is None:
            return self.computed_pattern(columns)
        kept, heads = self.set_pattern.weights * ~columns, self.set_pattern.heads
        if heads is None:
            return kept
        return torch.where(heads.to(kept.device)[:, None, None], kept, self.computed_pattern(columns))

    def proxy(self) -> "AttentionCall":
        """The call whose weights are |w| / sum |w|, slots counted; the call itself where it is normalised.

        A row without weights has zeros.
        """
        if self.is_normalised:
            return self
        if self.set_pattern is None and not self.kernel.clips:
            return replace(self, kernel=self.kernel.proxy)
        size = self.pattern().float().abs()
        return self.with_pattern(size / size.sum(-1, keepdim=True).clamp(min=torch.finfo(size.dtype).tiny))

    @cached_property
    def is_normalised(self) -> bool:
        """If rows of the pattern are non-negative and sum to one, slots counted; up to 1e-5 if an edit set it."""
        if self.set_pattern is None:
            return self.kernel.is_normalised
        weights = self.set_pattern.weights
        return bool((weights >= 0).all() and ((weights.sum(-1) - 1).abs() < 1e-5).all())

    def mix(self, pattern: Pattern) -> HeadOutput:
        """Values averaged by a pattern. A column before the first token's is the slot's."""
        tokens = pattern[..., -self.v.shape[2] :].unflatten(1, (self.v.shape[1], -1))
        z = torch.einsum("bkgij,bkjd->bkgid", tokens.to(self.v.dtype), self.v).flatten(1, 2)
        if isinstance(self.slot, SlotRow):
            z = z + torch.einsum("bhij,hjd->bhid", pattern[..., :1].to(z.dtype), self.slot.value.to(z.dtype))
        return z

    def output(self) -> HeadOutput:
        """The output of the heads, by a fused kernel if one computes the same thing.

        Else long calls are computed in runs of queries, again for gradients, so that no T x T map is kept.
        """
        if self._fused is not None:
            return self._fused[0]
        z = fused.output_alone(self) if self.set_pattern is None else None
        if z is not None:
            return z
        if self.set_pattern is not None or self.k.shape[2] <= LONG:
            return self.mix(self.pattern())
        return torch.cat([checkpoint(lambda x: x.mix(x.pattern()), x, use_reentrant=False) for x in self.runs()], 2)

    def runs(self, length: int = 128) -> Iterator["AttentionCall"]:
        """The calls of `length` queries each, with the keys that they may see."""
        runs = self.q.split(length, 2)
        masks, biases = (len(runs) * [None] if x is None else x.split(length, 2) for x in (self.mask, self.bias))
        n_seen = self.visibility.past
        for q, mask, bias in zip(runs, masks, biases, strict=True):
            n_seen = n_seen + q.shape[2] if mask is None else self.k.shape[2]
            k, v, bias = self.k[:, :, :n_seen], self.v[:, :, :n_seen], None if bias is None else bias[..., :n_seen]
            yield replace(self, q=q, k=k, v=v, mask=mask, bias=bias)

    @property
    def is_fused(self) -> bool:
        """Whether `output` and `log_normaliser` come from one fused kernel."""
        return self._fused is not None

    @cached_property
    def _fused(self) -> Attended | None:
        return fused.attended(self) if self.set_pattern is None else None

    def log_normaliser(self) -> PerQuery:
        """log Z of every row: what divides its weights. For softmax, the log-sum-exp of its scores; fp32.

        Raises InputError where an edit set the pattern.
        """
        return self._log_normaliser.clone()  # the other is kept for all weights

    @cached_property
    def _log_normaliser(self) -> PerQuery:
        if self.set_pattern is not None:
            raise InputError(f"the pattern of layer {self.layer} was set by an edit, so its normaliser is not defined")
        if self._fused is not None:
            return self._fused[1]
        return self.kernel.normaliser.log_size(self._signed_logs())

    def _signed_logs(self) -> Iterator[SignedLog]:
        slot = self.slot_scores()
        if slot is not None:
            yield self.kernel.signed_log(slot)
        for keys in key_blocks(self.keys):
            log_sim, sign = self.kernel.signed_log(self.scores(keys))
            yield log_sim.masked_fill(~self.allowed(keys), -torch.inf), sign

    def weights_at(self, keys: KeyIndex | None = None, rows: slice = ALL) -> SomePairs:
        """Attention of a run of queries to the chosen keys (default all), without the rest of the pattern."""
        if self.set_pattern is None:
            return self.kernel.alpha * self._allowed_weights(keys, rows)
        tokens = self.set_pattern.weights[:, :, rows, -self.k.shape[2] :]
        return tokens if keys is None else tokens[..., keys]

    def slot_weights(self) -> PerQuery | None:
        """Every query's attention to the slot; None without a slot."""
        scores = self.slot_scores()
        if scores is None:
            return None
        if self.set_pattern is not None:
            return self.set_pattern.weights[..., 0]
        weights = self.kernel.weights_over_alpha(scores, self._log_normaliser)
        return self.kernel.alpha * weights[..., 0]

    def slot_mass(self) -> Float[Tensor, "batch head"]:
        """Attention that the slot receives, summed over queries; 0 without a slot."""
        weights = self.slot_weights()
        return self.q.new_zeros(self.q.shape[:2]).float() if weights is None else weights.sum(2)

    def column_mass(self, keys: KeyIndex | None = None) -> KeyMass:
        """Attention that each chosen key (default all) receives, summed over queries; no T x T map is made."""
        keys = self.keys if keys is None else keys
        if self.set_pattern is not None:
            return self.weights_at().sum(2)[..., keys]
        if len(keys) > BLOCK and fused.takes_all_columns(self):
            masses = fused.column_masses(self, self._log_normaliser)
            if masses is not None:
                return masses.index_select(-1, keys)
        return torch.cat([self._block_mass(block) for block in key_blocks(keys)], -1)

    def _block_mass(self, keys: KeyIndex) -> KeyMass:
        sees_some, sees_all = self.visibility.regions(keys)  # drawn at `Visibility.regions`
        mass = self._weights_over_alpha(keys, sees_all).sum(2)
        if sees_some.start != sees_some.stop or sees_some == ALL:
            mass = self._allowed_weights(keys, sees_some).sum(2) + mass
        return self.kernel.alpha * mass

    def _allowed_weights(self, keys: KeyIndex | None, rows: slice) -> SomePairs:
        return self._weights_over_alpha(keys, rows).masked_fill_(~self.allowed(keys, rows), 0)

    def _weights_over_alpha(self, keys: KeyIndex | None, rows: slice) -> SomePairs:
        """Weights over alpha of every pair, masked or not."""
        log_z = self._log_normaliser[..., rows]
        return self.kernel.weights_over_alpha(self.scores(keys, rows), log_z)


def _at_least_fp32(x: Tensor) -> Tensor:
    """Half precision is not enough for scores; fp64 stays, for exact comparisons."""
    return x if x.dtype == torch.float64 else x.float()


def call_of_interface(
    layer: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None, **extra: Any
) -> AttentionCall:
    """The call that transformers' attention interface was asked to compute.

    An additive mask is split into the pairs that it forbids and the bias that it adds to the others. Without a mask,
    queries see all keys if `is_causal` in `extra` is false, else no later key; see `is_causal_call`. `key_bias` in
    `extra` is a bias with one row for all queries; see `relative_to_own_key`.
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
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    slot = extra.get("slot") if extra.get("s_aux") is None else SinkLogit(extra["s_aux"])
    kernel = extra.get("kernel") or SOFTMAX
    return AttentionCall(layer, q, k, v, scale, mask, bias, softcap=extra.get("softcap"), slot=slot, kernel=kernel)


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
    """Tells if an attention module that gives the interface no mask means causal attention, as transformers decides it.

    extra: the keyword arguments of the interface.
    """
    is_causal = extra.get("is_causal")
    return bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
