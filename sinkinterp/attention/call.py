"""AttentionCall: what one attention operation consumes, in every architecture and every backend."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from . import flash
from .kernels import SOFTMAX, Kernel
from .similarities import SignedLog
from .slots import SinkLogit, Slot, SlotRow

Index = Int[Tensor, " some_key"]
Mass = Float[Tensor, "batch head some_key"]
Rows = Float[Tensor, "batch head query"]
Pattern = Float[Tensor, "batch head query column"]
ALL = slice(None)


@dataclass(frozen=True)
class AttentionCall:
    """Queries, keys and values after norms and rotation; keys are not repeated for grouped queries.

    layer: index among all blocks of the model.
    mask: pairs that may attend; None is causal, the last query aligned with the last key.
    bias: added to the scaled scores (ALiBi, T5). softcap: scores become softcap * tanh(score / softcap).
    slot: a column left of the first key that belongs to no token.
    """

    layer: int
    q: Float[Tensor, "batch head query d_head"]
    k: Float[Tensor, "batch kv_head key d_head"]
    v: Float[Tensor, "batch kv_head key d_value"]
    scale: float
    mask: Bool[Tensor, "#batch #head query key"] | None = None
    bias: Float[Tensor, "#batch #head query key"] | None = None
    softcap: float | None = None
    slot: Slot = None
    kernel: Kernel = SOFTMAX

    @property
    def keys(self) -> Index:
        """Indices of all keys."""
        return torch.arange(self.k.shape[2], device=self.k.device)

    def scores(self, keys: Index | None = None, rows: slice = ALL) -> Float[Tensor, "batch head some_query some_key"]:
        """Scores of a run of queries with the chosen keys (default all), masked pairs included; fp32."""
        k = self.k if keys is None else self.k[:, :, keys]
        k = self.kernel.feature(k.float())
        # no einops in this file: what a remote server runs imports torch only
        q = self._scaled_queries[:, :, rows].unflatten(1, (k.shape[1], -1))  # b kv group i d
        scores = torch.einsum("bkrd,bkjd->bkrj", q.flatten(2, 3), k).unflatten(2, q.shape[2:4]).flatten(1, 2)
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if self.bias is not None:
            bias = self.bias[..., rows, :]
            scores = scores + (bias if keys is None else bias[..., keys])
        return scores

    @cached_property
    def _scaled_queries(self) -> Tensor:
        return self.kernel.feature(self.q.float()) * self.scale

    def slot_scores(self) -> Float[Tensor, "batch head query 1"] | None:
        """Scores of every query with the slot; None without one."""
        return None if self.slot is None else self.slot.scores(self.kernel.feature(self.q.float()), self.scale)

    def allowed(self, keys: Index | None = None, rows: slice = ALL) -> Bool[Tensor, "#batch #head some_query some_key"]:
        """Which of a run of queries may attend to the chosen keys (default all)."""
        if self.mask is not None:
            mask = self.mask[..., rows, :]
            return mask if keys is None else mask[..., keys]
        keys = self.keys if keys is None else keys
        queries = torch.arange(self.q.shape[2], device=self.q.device)[rows] + self.k.shape[2] - self.q.shape[2]
        return (keys[None, :] <= queries[:, None])[None, None]

    def watchers(self, keys: Index) -> Int[Tensor, "#batch #head some_key"]:
        """How many queries can see each of the chosen keys."""
        if self.mask is not None:
            return torch.cat([self.mask[..., some].sum(2) for some in flash.key_blocks(keys)], -1)
        first = keys + self.q.shape[2] - self.k.shape[2]
        return (self.q.shape[2] - first.clamp(min=0))[None, None]

    def columns_seen(self) -> Int[Tensor, "#batch #head query"]:
        """How many columns each query can see, its slot included."""
        extra = int(self.slot is not None)
        if self.mask is not None:
            return self.mask.sum(-1) + extra
        n_queries, n_keys = self.q.shape[2], self.k.shape[2]
        return torch.arange(n_keys - n_queries + 1, n_keys + 1, device=self.q.device)[None, None] + extra

    def pattern(self) -> Pattern:
        """Dense attention weights, the slot's column first where there is one. For small T."""
        scores, allowed, slot = self.scores(), self.allowed(), self.slot_scores()
        if slot is not None:
            scores = torch.cat((slot, scores), -1)
            allowed = torch.nn.functional.pad(allowed, (1, 0), value=True)
        return self.kernel.pattern(scores, allowed)

    def mix(self, pattern: Pattern) -> Float[Tensor, "batch head query d_value"]:
        """Values averaged by a pattern, whose extra first column, if any, is the slot's."""
        tokens = pattern[..., -self.k.shape[2] :].unflatten(1, (self.v.shape[1], -1))
        z = torch.einsum("bkgij,bkjd->bkgid", tokens.to(self.v.dtype), self.v).flatten(1, 2)
        if isinstance(self.slot, SlotRow):
            z = z + torch.einsum("bhij,hjd->bhid", pattern[..., :1].to(z.dtype), self.slot.value.to(z.dtype))
        return z

    def output(self) -> Float[Tensor, "batch head query d_value"]:
        """The call's result, by a fused kernel where one computes the same thing."""
        if self._fused is not None:
            return self._fused[0]
        off_cpu = self.q.device.type != "cpu" and self._is_plain_softmax
        return flash.sdpa(*self._columns) if off_cpu else self.mix(self.pattern())

    @property
    def is_fused(self) -> bool:
        """Whether `output` and `log_normaliser` come from one fused kernel."""
        return self._fused is not None

    @cached_property
    def _fused(self) -> tuple[Tensor, Tensor] | None:
        return flash.flash(*self._columns) if self._is_plain_softmax else None

    @property
    def _is_plain_softmax(self) -> bool:
        """Whether a kernel that knows queries, keys, values, a mask and a scale computes this call."""
        plain = self.kernel.is_softmax and self.bias is None and self.softcap is None
        return plain and not isinstance(self.slot, SinkLogit)

    @property
    def _columns(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None, float]:
        """What such a kernel takes, the slot as the first of the keys."""
        if not isinstance(self.slot, SlotRow):
            return self.q, self.k, self.v, self.mask, self.scale
        allowed = torch.nn.functional.pad(self.allowed(), (1, 0), value=True)
        k, v = (self._with_slot(t, row) for t, row in ((self.k, self.slot.key), (self.v, self.slot.value)))
        return self.q, k, v, allowed, self.scale

    def _with_slot(self, rows: Tensor, slot: Tensor) -> Tensor:
        heads = rows.repeat_interleave(self.q.shape[1] // rows.shape[1], 1)
        return torch.cat((slot.to(rows.dtype).expand(len(rows), -1, -1, -1), heads), 2)

    def log_normaliser(self) -> Rows:
        """log Z of every row: what divides its weights. For softmax, the log-sum-exp of its scores; fp32."""
        return self._log_normaliser

    @cached_property
    def _log_normaliser(self) -> Tensor:
        if self._fused is not None:
            return self._fused[1]
        return self.kernel.normaliser.log_size(self._signed_logs())

    def _signed_logs(self) -> Iterator[SignedLog]:
        slot = self.slot_scores()
        if slot is not None:
            yield self.kernel.similarity.signed_log(slot)
        for keys in flash.key_blocks(self.keys):
            log_sim, sign = self.kernel.similarity.signed_log(self.scores(keys))
            yield log_sim.masked_fill(~self.allowed(keys), -torch.inf), sign

    def _weights(self, scores: Tensor, rows: slice = ALL) -> Tensor:
        similarity = self.kernel.similarity
        log_z = self.log_normaliser()[..., rows, None]
        log_z = log_z.masked_fill(log_z == -torch.inf, 0)  # a row of zero weights has Z = 0, and its weights stay 0
        weights = similarity.log_magnitude(scores).sub_(log_z).exp_()
        return weights * self.kernel.normaliser.keep(similarity.sign(scores)) if similarity.signed else weights

    def _block_mass(self, keys: Tensor) -> Tensor:
        behind = 0 if self.mask is not None else self.q.shape[2] - self.k.shape[2]
        everything = self.mask is not None or not len(keys)
        first, last = (0, self.q.shape[2]) if everything else (int(k) + behind for k in keys.aminmax())
        # the causal rule: no query before `first` sees any of these keys, every query from `last` on sees them all
        partly, wholly = slice(max(first, 0), max(last, 0)), slice(max(last, 0), None)
        weights = self._weights(self.scores(keys, partly), partly).masked_fill_(~self.allowed(keys, partly), 0)
        return self.kernel.alpha * (weights.sum(2) + self._weights(self.scores(keys, wholly), wholly).sum(2))

    def weights_at(
        self, keys: Index | None = None, rows: slice = ALL
    ) -> Float[Tensor, "batch head some_query some_key"]:
        """A run of queries' attention to the chosen keys (default all): part of the pattern, made without the rest."""
        weights = self._weights(self.scores(keys, rows), rows).masked_fill_(~self.allowed(keys, rows), 0)
        return self.kernel.alpha * weights

    def slot_weights(self) -> Float[Tensor, "batch head query"] | None:
        """Every query's attention to the slot; None without one."""
        slot = self.slot_scores()
        return None if slot is None else self.kernel.alpha * self._weights(slot)[..., 0]

    def column_mass(self, keys: Index | None = None) -> Mass:
        """Attention that each chosen key (default all) receives, summed over queries; no T x T map is made."""
        blocks = flash.key_blocks(self.keys if keys is None else keys)
        return torch.cat([self._block_mass(block) for block in blocks], -1)

    def slot_mass(self) -> Float[Tensor, "batch head"]:
        """Attention that the slot receives, summed over queries; 0 without a slot."""
        weights = self.slot_weights()
        return self.q.new_zeros(self.q.shape[:2]).float() if weights is None else weights.sum(2)


def call_of_interface(
    layer: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None, **extra: Any
) -> AttentionCall:
    """The call that transformers' attention interface was asked to compute.

    An additive mask is split into the pairs that it forbids and the bias that it adds to the others.
    """
    bias = extra.get("position_bias")
    if mask is not None and mask.dtype != torch.bool:
        allowed = mask > torch.finfo(mask.dtype).min / 2
        added = mask.masked_fill(~allowed, 0)
        bias = added if bias is None else bias + added
        mask, bias = allowed, bias if bias.any() else None
    logits = extra.get("s_aux")
    slot = extra.get("slot") if logits is None else SinkLogit(logits)
    return AttentionCall(
        layer, q, k, v, q.shape[-1] ** -0.5 if scale is None else scale, mask, bias,
        extra.get("softcap"), slot, extra.get("kernel") or SOFTMAX,
    )  # fmt: skip
