"""FlexAttention, PyTorch's public kernel with changes of scores: output and log-sum-exp without a T x T map, on CUDA.

It takes what PyTorch's other kernels do not: a soft cap, a bias in fp32 beside queries in bf16, and masks without
their additive copy. On a CPU torch 2.13 compiles it without the log-sum-exp, and uncompiled it makes the T x T map.
There it is only a reference in tests.
"""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention
from torch.utils._triton import has_triton_package

from .fused import Attended, Plain

REFUSED: dict[tuple[object, ...], str] = {}  # why kinds of calls did not compile in this process; blocks serve them


def attend(given: Plain, softcap: float | None) -> Attended | None:
    """Output and log-sum-exp by the compiled kernel; None without a CUDA device, Triton, or such a kernel.

    No gradients. The first call of a kind compiles it, which takes some seconds.
    """
    kind = (given.q.shape[-1], given.v.shape[-1], given.q.dtype, softcap is None, given.bias is None)
    if given.q.device.type != "cuda" or not has_triton_package() or kind in REFUSED:
        return None
    try:
        return run(given, softcap, _compiled())
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError as error:  # of which the errors of the compiler are a kind
        REFUSED[kind] = str(error).strip().splitlines()[0]
        return None


def run(given: Plain, softcap: float | None, kernel: Callable[..., Any]) -> Attended:
    """Output and log-sum-exp by `flex_attention` or its compiled form. Queries that see nothing get 0 and -inf."""
    block_mask = _block_mask(given)
    given = given.repeated() if given.is_grouped else given  # compiled kernels take powers of two per group only
    q, k, v = (t.contiguous() for t in (given.q, given.k, given.v))
    score_mod = _changed_scores(given.bias, softcap)
    z, aux = kernel(
        q, k, v, score_mod=score_mod, block_mask=block_mask, scale=given.scale, return_aux=AuxRequest(lse=True)
    )
    return z, aux.lse


@cache
def _compiled() -> Callable[..., Any]:
    return torch.compile(flex_attention)


def _changed_scores(bias: Tensor | None, softcap: float | None) -> Callable[..., Tensor] | None:
    """Applies the soft cap to a score, then the bias, as `Scoring.scores` does.

    Lambdas, since PyTorch counts their parameters, and type checks of named functions are side effects to its tracer.
    """
    if bias is None:
        return None if softcap is None else lambda s, b, h, i, j: softcap * torch.tanh(s / softcap)
    n, m = bias.shape[:2]
    if softcap is None:
        return lambda s, b, h, i, j: s + bias[b % n, h % m, i, j]
    return lambda s, b, h, i, j: softcap * torch.tanh(s / softcap) + bias[b % n, h % m, i, j]


def _block_mask(given: Plain) -> BlockMask | None:
    mask, n_queries, n_keys, device = given.allowed, given.q.shape[2], given.k.shape[2], given.q.device
    if mask is None:
        return None if n_queries == 1 else _causal(n_queries, n_keys, device)
    n, m = mask.shape[:2]
    return create_block_mask(lambda b, h, i, j: mask[b % n, h % m, i, j], n, m, n_queries, n_keys, device=str(device))


@lru_cache(maxsize=8)
def _causal(n_queries: int, n_keys: int, device: torch.device) -> BlockMask:
    past = n_keys - n_queries
    return create_block_mask(lambda b, h, i, j: j <= i + past, None, None, n_queries, n_keys, device=str(device))
