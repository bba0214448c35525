"""Attention without its T x T map: PyTorch's fused kernels, and log-sums gathered block by block.

The only file that uses private operators of PyTorch, which `flash` does without where they are missing.
"""

from collections.abc import Iterable
from functools import reduce

import torch
from torch import Tensor

from .shapes import Allowed, HeadOutput, Keys, Queries, Rows, Scores, Values

BLOCK = 64  # keys per block: at T = 32,768 and 12 heads, 100 MB of fp32 scores

_CHOICE = getattr(torch, "_fused_sdp_choice", None)
_FLASH_ON_CPU = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_FLASH = 1  # torch.nn.attention.SDPBackend.FLASH_ATTENTION


def flash(q: Queries, k: Keys, v: Values, allowed: Allowed | None, scale: float) -> tuple[HeadOutput, Rows] | None:
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


def key_blocks(keys: Tensor, block: int = BLOCK) -> Iterable[Tensor]:
    """`keys` in blocks of at most `block`."""
    return keys.split(block)


def log_total(blocks: Iterable[Scores]) -> Rows:
    """Row-wise log-sum-exp over blocks of columns, with one block in memory at a time."""
    return reduce(torch.logaddexp, (block.logsumexp(-1) for block in blocks))
