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
from .kernels import SOFTMAX
from .masks import ALL, BLOCK, Masks
from .shapes import HeadOutput, KeyIndex, KeyMass, Pattern, PerQuery, Queries, SomeAllowed, SomePairs
from .slots import SinkLogit, SlotRow

SHORT = 128  # keys; up to so many, all weights cost no more than those of one column by the log-sum-exp
LARGE = 64.0  # scores; beyond, the rounding of the kernel's log-sum-exp is seen in the weights
_SCORED = tuple(field.name for field in fields(Inputs) if field.name not in ("layer", "v", "shared"))


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
        return self.visibility.keys

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
        scores, slot = self.scores(), self.slot_scores()
        if self.kernel.is_softmax and hidden is None:
            return self._softmax(scores, slot)
        allowed = self.allowed()
        if slot is not None:
            scores = torch.cat((slot, scores), -1)
            allowed = F.pad(allowed, (1, 0), value=True)
        if hidden is not None:
            allowed = allowed & ~hidden
        return self.kernel.pattern(scores, allowed)

    def _softmax(self, scores: SomePairs, slot: Tensor | None) -> Pattern:
        """As the kernel computes it, by one operator. It overwrites the scores."""
        scores = scores.masked_fill_(self.visibility.hidden, torch.finfo(scores.dtype).min)
        if slot is not None:
            return torch.cat((slot, scores), -1).softmax(-1)
        weights = scores.softmax(-1)
        return weights.masked_fill(self.visibility.hidden, 0) if self.visibility.has_blind_queries else weights

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
            fix = '; float16 ends at 65,504: load it with dtype="bfloat16"' * is_half
            yield f"weights of layer {self.layer} are not finite{fix}"
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
        return self if self.is_normalised else self._proxy

    @cached_property
    def _proxy(self) -> "AttentionCall":
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
        for start in range(0, self.q.shape[2], length):
            yield self.part(slice(start, start + length))

    def part(self, rows: slice) -> "AttentionCall":
        """The call of a run of queries, with the keys that they may see; without weights that an edit set."""
        seen = self.visibility.part(rows)
        k, v = (x[:, :, : seen.n_keys] for x in (self.k, self.v))
        bias = None if self.bias is None else self.bias[..., rows, : seen.n_keys]
        return replace(self, q=self.q[:, :, rows], k=k, v=v, mask=seen.mask, bias=bias, shared=seen, set_pattern=None)

    @property
    def is_fused(self) -> bool:
        """Whether `output` and `log_normaliser` come from one fused kernel."""
        return self._fused is not None

    @cached_property
    def _fused(self) -> Attended | None:
        return fused.attended(self) if self.set_pattern is None else None

    def log_normaliser(self) -> PerQuery:
        """The log-sum-exp of every row's scores, its slot's included: what divides the weights of softmax; fp32.

        Raises InputError for another kernel, and where an edit set the pattern.
        """
        if self.set_pattern is not None:
            raise InputError(f"the pattern of layer {self.layer} was set by an edit, so its normaliser is not defined")
        if not self.kernel.is_softmax:
            raise InputError("the log-sum-exp is that of softmax; weights of other kernels are call.pattern()")
        if self._fused is not None:
            return self._fused[1].clone()  # the other is kept for all weights
        return torch.cat([part._log_sum() for part in self.runs()], 2)

    def _log_sum(self) -> PerQuery:
        scores, slot = self.scores().masked_fill_(self.visibility.hidden, -torch.inf), self.slot_scores()
        return (scores if slot is None else torch.cat((slot, scores), -1)).logsumexp(-1)

    @cached_property
    def _log_sums(self) -> PerQuery | None:
        """The kernel's log-sum-exp; None where dense weights of runs of queries are as fast, or far more exact.

        It is rounded at the size of the scores. At `LARGE` scores that costs 4e-6 of a weight.
        """
        if self.k.shape[2] <= SHORT or self._fused is None:
            return None
        log_sums = self._fused[1]
        return None if (log_sums.abs() > LARGE).logical_and_(log_sums > -torch.inf).any() else log_sums

    def _weights_by(self, log_sums: PerQuery, scores: SomePairs) -> SomePairs:
        """Weights of pairs, masked or not. It overwrites the scores. No rounding makes a weight exceed 1."""
        return scores.sub_(log_sums[..., None]).clamp_(max=0).exp_()

    @cached_property
    def _sums(self) -> tuple[KeyMass, PerQuery | None]:
        """Attention that every key receives, summed over queries, and every query's attention to the slot."""
        if self.set_pattern is not None or self.q.shape[2] <= (length := min(SHORT, max(16, 2**20 // self.k.shape[2]))):
            weights = self.pattern()
            return weights[..., -self.k.shape[2] :].sum(2), None if self.slot is None else weights[..., 0]
        dtype = torch.promote_types(self.q.dtype, torch.float32)
        masses, slots = self.q.new_zeros((*self.q.shape[:2], self.k.shape[2]), dtype=dtype), []
        for part in self.runs(length):
            weights, n_keys = part.pattern(), part.k.shape[2]
            masses[..., :n_keys] += weights[..., -n_keys:].sum(2)
            slots.append(weights[..., 0].clone())  # a view would keep the weights of the whole run
        return masses, None if self.slot is None else torch.cat(slots, 2)

    def _marked(self, keys: KeyIndex) -> SomePairs | None:
        """The kernel's own weights of a few keys, at any size of scores; None where whole rows are as fast or known.

        They are what heads return of values that are 1 at one of the keys. It costs the kernel once more.
        """
        known = self.k.shape[2] <= SHORT or "_sums" in vars(self) or self._log_sums is not None
        if known or self._fused is None or len(keys) > self.v.shape[-1] or self.q.dtype.itemsize < 4:
            return None
        v, slot = torch.zeros_like(self.v), self.slot
        v[:, :, keys, torch.arange(len(keys), device=keys.device)] = 1
        slot = replace(slot, value=torch.zeros_like(slot.value)) if isinstance(slot, SlotRow) else slot
        marked = fused.attended(replace(self, v=v, slot=slot))
        return None if marked is None else marked[0][..., : len(keys)].clamp(max=1)

    def weights_at(self, keys: KeyIndex | None = None, rows: slice = ALL) -> SomePairs:
        """Attention of a run of queries to the chosen keys (default all)."""
        if self.set_pattern is not None:
            tokens = self.set_pattern.weights[:, :, rows, -self.k.shape[2] :]
        elif keys is not None and len(keys) <= BLOCK and self._log_sums is not None:
            weights = self._weights_by(self._log_sums[:, :, rows], self.scores(keys, rows))
            return weights.masked_fill_(self.visibility.hides(keys)[..., rows, :], 0)
        else:
            part = self.part(rows)
            tokens = F.pad(part.pattern()[..., -part.k.shape[2] :], (0, self.k.shape[2] - part.k.shape[2]))
        return tokens if keys is None else tokens[..., keys]

    def slot_weights(self) -> PerQuery | None:
        """Every query's attention to the slot; None without a slot."""
        if self.slot is None or self.set_pattern is not None or self._log_sums is None:
            return None if self.slot is None else self._sums[1]
        scores = self.slot_scores()
        return None if scores is None else self._weights_by(self._log_sums, scores)[..., 0]

    def slot_mass(self) -> Float[Tensor, "batch head"]:
        """Attention that the slot receives, summed over queries; 0 without a slot."""
        weights = self.slot_weights()
        return self.zeros() if weights is None else weights.sum(2)

    def zeros(self) -> Float[Tensor, "batch head"]:
        """A zero for every head, which nobody may change: the layers of a pass share it."""
        shape = tuple(self.q.shape[:2])
        return self.visibility.once(("zeros", shape), lambda: torch.zeros(shape, device=self.q.device))

    def column_mass(self, keys: KeyIndex | None = None) -> KeyMass:
        """Attention that each chosen key (default all) receives, summed over queries; no T x T map is made."""
        if self.set_pattern is None and self._log_sums is not None:
            if keys is not None and len(keys) <= BLOCK:
                return self.weights_at(keys).sum(2)
            if fused.takes_all_columns(self):
                masses = fused.column_masses(self, self._log_sums)
                if masses is not None:
                    return masses if keys is None else masses.index_select(-1, keys)
        marked = None if keys is None else self._marked(keys)
        if marked is not None:
            return marked.sum(2)
        return self._sums[0] if keys is None else self._sums[0].index_select(-1, keys)


def _at_least_fp32(x: Tensor) -> Tensor:
    """Half precision is not enough for scores; fp64 stays, for exact comparisons."""
    return x if x.dtype == torch.float64 else x.float()


def call_of_interface(
    layer: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None, **extra: Any
) -> AttentionCall:
    """The call that transformers' attention interface was asked to compute.

    An additive mask is split into the pairs that it forbids and the bias that it adds to the others. Without a mask,
    queries see all keys if `is_causal` in `extra` is false, else no later key; see `is_causal_call`. `key_bias` in
    `extra` is a bias with one row for all queries; see `relative_to_own_key`. `masks` in `extra` are those of the pass.
    """
    bias, masks = extra.get("position_bias"), extra.get("masks") or Masks()
    if bias is None and extra.get("key_bias") is not None:
        bias = relative_to_own_key(extra["key_bias"], q.shape[2])
    if mask is None and extra.get("is_causal") is False:
        mask = torch.ones(1, 1, q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
        bias = None if bias is None or not bias.any() else bias  # T5's cross-attention adds zeros
    if mask is not None and mask.dtype != torch.bool:
        mask, added = masks.split(mask)
        given = bias if bias is None or bias.any() else None
        bias = given if added is None else added if given is None else given + added
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    seen = masks.visibility(q.shape[2], k.shape[2], q.device, mask)
    slot = extra.get("slot") if extra.get("s_aux") is None else SinkLogit(extra["s_aux"])
    kernel = extra.get("kernel") or SOFTMAX
    softcap = extra.get("softcap")
    return AttentionCall(layer, q, k, v, scale, mask, bias, softcap=softcap, slot=slot, kernel=kernel, shared=seen)


def unscaled(module: Any, q: Queries, scale: float | None) -> tuple[Queries, float | None]:
    """Queries and the scale of their scores, also of a model that multiplies queries by it before the call (OPT)."""
    own = getattr(module, "scaling", None)
    if scale == 1 and isinstance(own, float) and own not in (0, 1):
        return q / own, own
    return q, scale


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
