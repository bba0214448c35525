"""Attention without its T x T map: the fused kernel's log-sum-exp, and log-sums gathered block by block."""

from collections.abc import Iterable
from functools import reduce

import torch
from jaxtyping import Bool, Float
from torch import Tensor

BLOCK = 64  # keys per block: at T = 32,768 and 12 heads, 100 MB of fp32 scores

Queries = Float[Tensor, "batch head query d_head"]
Keys = Float[Tensor, "batch kv_head key d_head"]
Values = Float[Tensor, "batch kv_head key d_value"]
Output = Float[Tensor, "batch head query d_value"]
Rows = Float[Tensor, "batch head query"]

_FLASH = 1  # torch.nn.attention.SDPBackend.FLASH_ATTENTION


def flash(
    q: Queries, k: Keys, v: Values, allowed: Bool[Tensor, "#batch #head query key"] | None, scale: float
) -> tuple[Output, Rows] | None:
    """The fused kernel's output and its row-wise log-sum-exp in fp32; None where PyTorch would choose another kernel.

    The output is bit for bit that of `scaled_dot_product_attention`. `allowed` None is causal, or open to one query.
    """
    causal = allowed is None and q.shape[2] > 1
    if q.device.type != "cpu" or (causal and q.shape[2] != k.shape[2]):
        return None
    grouped = q.shape[1] != k.shape[1]
    if torch._fused_sdp_choice(q, k, v, allowed, 0.0, causal, scale=scale, enable_gqa=grouped) != _FLASH:
        return None
    additive = None if allowed is None else q.new_zeros(allowed.shape).masked_fill_(~allowed, -torch.inf)
    z, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, attn_mask=additive, scale=scale
    )
    return z, log_sum


def sdpa(
    q: Queries, k: Keys, v: Values, allowed: Bool[Tensor, "#batch #head query key"] | None, scale: float
) -> Output:
    """Softmax attention by the kernel that `scaled_dot_product_attention` chooses for the device; no log-sum-exp.

    `allowed` None is causal, the last query aligned with the last key. Queries that see nothing get 0.
    """
    # kernels differ in whether they know groups, and rows without a key; the one that knows all makes the T x T map
    k, v = (t.to(q.dtype).repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    n_queries, n_keys = q.shape[2], k.shape[2]
    if allowed is None and n_queries != n_keys:
        allowed = torch.ones(n_queries, n_keys, dtype=torch.bool, device=q.device).tril(n_keys - n_queries)[None, None]
    if allowed is None:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    seeing = allowed.any(-1, keepdim=True)
    return seeing * torch.nn.functional.scaled_dot_product_attention(q, k, v, allowed | ~seeing, scale=scale)


def key_blocks(keys: Tensor, block: int = BLOCK) -> Iterable[Tensor]:
    """`keys` in runs of at most `block`."""
    return keys.split(block)


def log_total(blocks: Iterable[Float[Tensor, "batch head query some_key"]]) -> Rows:
    """Row-wise log-sum-exp over blocks of columns, one block in memory at a time."""
    return reduce(torch.logaddexp, (block.logsumexp(-1) for block in blocks))
