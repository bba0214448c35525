"""PyTorch's fused attention kernels: which calls they compute, and how a call is handed to them.

They return the output, and on a CPU the log-sum-exp of every row, without a T x T map. This is the only file that uses
private operators of PyTorch. Where they are missing, `flash` returns None.
"""

import torch
from torch import Tensor

from .scoring import Scoring
from .shapes import Allowed, HeadOutput, Keys, PerQuery, Queries, Values
from .slots import SinkLogit, SlotRow

_CHOICE = getattr(torch, "_fused_sdp_choice", None)
_FLASH_ON_CPU = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_FLASH = 1  # torch.nn.attention.SDPBackend.FLASH_ATTENTION


def flash(q: Queries, k: Keys, v: Values, allowed: Allowed | None, scale: float) -> tuple[HeadOutput, PerQuery] | None:
    """The fused kernel's output and its row-wise log-sum-exp in fp32; None where PyTorch would choose another kernel.

    The output is bit for bit that of `scaled_dot_product_attention`. `allowed` None is causal, or open to one query.
    """
    causal = allowed is None and q.shape[2] > 1
    if q.device.type != "cpu" or (causal and q.shape[2] != k.shape[2]) or _CHOICE is None or _FLASH_ON_CPU is None:
        return None
    grouped = q.shape[1] != k.shape[1]
    if _CHOICE(q, k, v, allowed, 0.0, causal, scale=scale, enable_gqa=grouped) != _FLASH:
        return None
    additive = None if allowed is None else q.new_zeros(allowed.shape).masked_fill_(~allowed, -torch.inf)
    z, log_sum = _FLASH_ON_CPU(q, k, v, 0.0, causal, attn_mask=additive, scale=scale)
    return z, log_sum


def sdpa(q: Queries, k: Keys, v: Values, allowed: Allowed | None, scale: float) -> HeadOutput:
    """Softmax attention by the kernel that `scaled_dot_product_attention` chooses for the device; no log-sum-exp.

    `allowed` None is causal, the last query aligned with the last key. Queries that see nothing get 0.
    """
    # not every kernel accepts grouped queries or rows without a key, and the one that does makes the T x T map
    k, v = (t.to(q.dtype).repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    n_queries, n_keys = q.shape[2], k.shape[2]
    if allowed is None and n_queries != n_keys:
        allowed = torch.ones(n_queries, n_keys, dtype=torch.bool, device=q.device).tril(n_keys - n_queries)[None, None]
    if allowed is None:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    seeing = allowed.any(-1, keepdim=True)
    return seeing * torch.nn.functional.scaled_dot_product_attention(q, k, v, allowed | ~seeing, scale=scale)


def with_log_sum(scoring: Scoring, v: Values) -> tuple[HeadOutput, PerQuery] | None:
    """What the heads return and the log-sum-exp of every row, by one kernel; None where none computes both."""
    return flash(*inputs(scoring, v)) if _is_plain_softmax(scoring) else None


def off_cpu(scoring: Scoring, v: Values) -> HeadOutput | None:
    """What the heads return, by the fused kernel of another device; None on a CPU, or where no kernel computes it."""
    is_fused = scoring.q.device.type != "cpu" and _is_plain_softmax(scoring)
    return sdpa(*inputs(scoring, v)) if is_fused else None


def inputs(scoring: Scoring, v: Values) -> tuple[Tensor, Tensor, Tensor, Tensor | None, float]:
    """Queries, keys, values, allowed pairs (None is causal) and scale for a fused kernel; the slot is the first key."""
    if not isinstance(scoring.slot, SlotRow):
        return scoring.q, scoring.k, v, scoring.mask, scoring.scale
    n_heads = scoring.q.shape[1]
    allowed = torch.nn.functional.pad(scoring.visibility.allowed(), (1, 0), value=True)
    k = _with_slot(scoring.slot.key, scoring.k, n_heads)
    return scoring.q, k, _with_slot(scoring.slot.value, v, n_heads), allowed, scoring.scale


def _is_plain_softmax(scoring: Scoring) -> bool:
    """Whether a kernel that knows queries, keys, values, a mask and a scale computes these weights."""
    is_plain = scoring.kernel.is_softmax and scoring.bias is None and scoring.softcap is None
    return is_plain and not isinstance(scoring.slot, SinkLogit)


def _with_slot(slot: Tensor, tokens: Tensor, n_heads: int) -> Tensor:
    tokens = tokens.repeat_interleave(n_heads // tokens.shape[1], 1)
    return torch.cat((slot.to(tokens.dtype).expand(len(tokens), -1, -1, -1), tokens), 2)
