"""PyTorch's own fused attention kernels: the output and the log-sum-exp of every row, without a T x T map.

This is the only file that uses private operators of PyTorch. If they are missing, or if PyTorch would choose a
kernel that makes the T x T map, `attend` returns None. `paths` says which call comes here, and what happens then.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from .scoring import Scoring
from .shapes import Allowed, HeadOutput, Keys, PerQuery, Queries, Values
from .slots import SlotRow

Attended = tuple[HeadOutput, PerQuery]  # what the heads return, and the log-sum-exp of every row in fp32
_Returned = tuple[Tensor, Tensor]  # the same as a kernel of CUDA pads it

_CHOICE = getattr(torch, "_fused_sdp_choice", None)
_FLASH_ON_CPU = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_FLASH = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention", None)
_EFFICIENT = getattr(torch.ops.aten, "_scaled_dot_product_efficient_attention", None)
_CUDNN = getattr(torch.ops.aten, "_scaled_dot_product_cudnn_attention", None)
PRIVATE = ("_CHOICE", "_FLASH_ON_CPU", "_FLASH", "_EFFICIENT", "_CUDNN")  # None where this torch has no such operator
FLASH, EFFICIENT, CUDNN = 1, 2, 3  # as in torch.nn.attention.SDPBackend, whose members do not equal numbers
LONG = 512  # keys; below, a slot's mask is small
ALIGNED = 8  # CUDA's flash kernel takes heads, and its memory-efficient one rows of masks, in multiples of so many


@dataclass(frozen=True, eq=False)
class Plain:
    """Softmax attention as PyTorch's kernels take it: scores with a mask and a bias. A slot's row is the first key.

    allowed: pairs that may attend; None is causal, the last query aligned with the last key.
    leads: whether the first query is a row of zeros, which makes causal attention with a slot square. It has no result.
    """

    q: Queries
    k: Keys
    v: Values
    allowed: Allowed | None
    bias: Float[Tensor, "#batch #head query key"] | None
    scale: float
    leads: bool = False

    def cut(self, *results: Tensor) -> tuple[Tensor, ...]:
        """Results of `batch head query`, for the queries that are asked."""
        return tuple(result[:, :, 1:] for result in results) if self.leads else results

    @property
    def is_causal(self) -> bool:
        """Whether a kernel's own causal mask is the whole mask."""
        return self.allowed is None and self.bias is None and self.q.shape[2] == self.k.shape[2] > 1

    @property
    def is_grouped(self) -> bool:
        """Whether several queries share a key."""
        return self.q.shape[1] != self.k.shape[1]

    @property
    def mask(self) -> Allowed | None:
        """Pairs that may attend; None where the kernel's own causal mask says so, or where all may."""
        if self.allowed is not None or self.is_causal or (self.q.shape[2] == 1 and self.bias is None):
            return self.allowed
        return _causal(self.q.shape[2], self.k.shape[2], self.q.device)

    def additive(self) -> Tensor | None:
        """The addition to the scores: the bias, and -inf if a pair may not attend; None for nothing."""
        mask = self.mask
        if mask is None:
            return None
        bias = self.q.new_zeros(()) if self.bias is None else self.bias.to(self.q.dtype)
        return torch.where(mask, bias, -torch.inf)

    def repeated(self) -> "Plain":
        """The same attention with a key and a value for every query head."""
        times = self.q.shape[1] // self.k.shape[1]
        k, v = (t.to(self.q.dtype).repeat_interleave(times, 1) for t in (self.k, self.v))
        return replace(self, k=k, v=v)


def plain(call: Scoring) -> Plain:
    """The kernels' arguments, without soft cap and sink logit."""
    q, k, v, mask, bias, scale = call.q, call.k, call.v, call.mask, call.bias, call.scale
    if not isinstance(call.slot, SlotRow):
        return Plain(q, k, v, mask, bias, scale)
    n_queries, n_keys = q.shape[2], k.shape[2]
    k, v = (_with_slot(row, t, q.shape[1]) for row, t in ((call.slot.key, k), (call.slot.value, v)))
    if mask is bias is None and n_queries == n_keys > LONG:  # a kernel skips half of the pairs
        return Plain(F.pad(q, (0, 0, 1, 0)), k, v, None, None, scale, leads=True)
    mask = _causal(n_queries, n_keys, q.device) if mask is None else mask
    allowed = F.pad(mask, (1, 0), value=True)
    return Plain(q, k, v, allowed, None if bias is None else F.pad(bias, (1, 0)), scale)


def attend(given: Plain) -> Attended | None:
    """Output and log-sum-exp by the kernel that `scaled_dot_product_attention` would choose; None if it has no such.

    On a CPU the output is bit for bit that of `scaled_dot_product_attention`.
    """
    if given.q.device.type == "cpu":
        return _on_cpu(given)
    is_there = given.q.device.type == "cuda" and _CHOICE is not None
    return _on_cuda(given) if is_there and not torch.compiler.is_compiling() else None


def sdpa(given: Plain) -> HeadOutput:
    """The output by the public `scaled_dot_product_attention`; no log-sum-exp. Queries that see nothing get 0."""
    given = given.repeated()  # not every kernel accepts grouped queries, and the one that does makes the T x T map
    mask, added = given.mask, given.additive()
    if mask is None or added is None:
        return F.scaled_dot_product_attention(given.q, given.k, given.v, is_causal=given.is_causal, scale=given.scale)
    seeing = mask.any(-1, keepdim=True)  # nor does every kernel accept rows without a key
    added = torch.where(seeing, added, 0)
    return seeing * F.scaled_dot_product_attention(given.q, given.k, given.v, added, scale=given.scale)


def _on_cpu(given: Plain) -> Attended | None:
    added = given.additive()
    if _CHOICE is None or _FLASH_ON_CPU is None or _chosen(given, added) != FLASH:
        return None
    z, log_sum = _FLASH_ON_CPU(given.q, given.k, given.v, 0.0, given.is_causal, attn_mask=added, scale=given.scale)
    return z, log_sum if given.mask is None else torch.where(given.mask.any(-1), log_sum, -torch.inf)


def _on_cuda(given: Plain) -> Attended | None:
    mask, added = given.mask, given.additive()
    seeing = None if mask is None else mask.any(-1, keepdim=True)
    if added is not None and seeing is not None:
        added = torch.where(seeing, added, 0)
    for accepted in (given, given.repeated()) if given.is_grouped else (given,):
        kernel = _ON_CUDA.get(_chosen(accepted, added))
        attended = None if kernel is None else kernel(accepted, added)
        if attended is None:
            continue
        z, log_sum = attended
        log_sum = log_sum.reshape(*z.shape[:2], -1).narrow(-1, 0, z.shape[2])  # without padding and axes of 1
        return (z, log_sum) if seeing is None else (z * seeing, torch.where(seeing.squeeze(-1), log_sum, -torch.inf))
    return None


def _chosen(given: Plain, added: Tensor | None) -> int:
    """The kernel that `scaled_dot_product_attention` would choose: FLASH, EFFICIENT, CUDNN or another."""
    assert _CHOICE is not None
    about = {"scale": given.scale, "enable_gqa": given.is_grouped}
    return int(_CHOICE(given.q, given.k, given.v, added, 0.0, given.is_causal, **about))


def _flash(given: Plain, added: Tensor | None) -> _Returned | None:
    if _FLASH is None or added is not None:
        return None
    missing = -given.q.shape[-1] % ALIGNED
    q, k, v = (F.pad(t, (0, missing)) if missing else t for t in (given.q, given.k, given.v))
    z, log_sum, *_ = _FLASH(q, k, v, 0.0, given.is_causal, False, scale=given.scale)
    return z.narrow(-1, 0, given.v.shape[-1]), log_sum


def _efficient(given: Plain, added: Tensor | None) -> _Returned | None:
    if _EFFICIENT is None:
        return None
    if added is not None:  # its rows must start at aligned addresses, and it does not broadcast
        n_keys = added.shape[-1]
        added = F.pad(added, (0, -n_keys % ALIGNED)).narrow(-1, 0, n_keys).expand(*given.q.shape[:3], n_keys)
    z, log_sum, *_ = _EFFICIENT(given.q, given.k, given.v, added, True, 0.0, given.is_causal, scale=given.scale)
    return z, log_sum


def _cudnn(given: Plain, added: Tensor | None) -> _Returned | None:
    if _CUDNN is None:
        return None
    z, log_sum, *_ = _CUDNN(given.q, given.k, given.v, added, True, 0.0, given.is_causal, False, scale=given.scale)
    return z, log_sum


_ON_CUDA: Mapping[int, Callable[[Plain, Tensor | None], _Returned | None]] = {
    FLASH: _flash,
    EFFICIENT: _efficient,
    CUDNN: _cudnn,
}


def _causal(n_queries: int, n_keys: int, device: torch.device) -> Allowed:
    mask = torch.ones(1, 1, n_queries, n_keys, dtype=torch.bool, device=device)
    return mask.tril(n_keys - n_queries)


def _with_slot(slot: Tensor, tokens: Tensor, n_heads: int) -> Tensor:
    tokens = tokens.repeat_interleave(n_heads // tokens.shape[1], 1)
    return torch.cat((slot.to(tokens.dtype).expand(len(tokens), -1, -1, -1), tokens), 2)
