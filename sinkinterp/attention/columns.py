"""Attention that every key receives, by one more pass of a fused kernel, for causal softmax.

Key j receives the sum over i >= j of exp(scale q_i.k_j - lse_i). That is exp of a log-sum-exp again, of an attention
in which keys ask and queries answer. Read from the last token to the first it is causal. -lse_i / scale becomes part of
the answering vectors, where the asking ones have a 1: one number in fp32, and in half precision three that sum to it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from . import fused
from .fused import Plain
from .scoring import Scoring
from .shapes import Keys, PerQuery, Queries

_ALIGNED = 8  # CUDA's kernels take heads of a multiple of so many dimensions


def takes(scoring: Scoring) -> bool:
    """Whether `masses` computes these weights, and faster than blocks of keys: on CUDA, where nothing is trained."""
    is_bare = scoring.kernel.is_softmax and scoring.mask is scoring.bias is scoring.softcap is None
    is_square = scoring.q.shape[2] == scoring.k.shape[2] > 1
    is_trained = torch.is_grad_enabled() and (scoring.q.requires_grad or scoring.k.requires_grad)
    return scoring.q.device.type == "cuda" and is_bare and is_square and not is_trained


def masses(q: Queries, k: Keys, log_sum: PerQuery, scale: float) -> PerQuery | None:
    """Attention that every key receives, summed over the queries from its own on; None where no kernel gives it.

    log_sum: of every row, slots counted. fp32; relative error up to 1e-5 in fp32 and 1e-4 in bf16.
    """
    parts = _as_sum(-log_sum / scale, q.dtype)
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    answering, asking = (
        F.pad(torch.cat((t, more), -1), (0, -(t.shape[-1] + more.shape[-1]) % _ALIGNED)).flip(2)
        for t, more in ((q, parts), (k, torch.ones_like(parts)))
    )
    attended = fused.attend(Plain(asking, answering, answering, None, None, scale))
    return None if attended is None else attended[1].flip(-1).exp()


def _as_sum(values: PerQuery, dtype: torch.dtype) -> Tensor:
    """Numbers of a precision, in a new last axis, that sum to fp32 values."""
    parts = []
    for _ in range(1 if dtype.itemsize >= values.dtype.itemsize else 3):
        parts.append(values.to(dtype))
        values = values - parts[-1]
    return torch.stack(parts, -1)
