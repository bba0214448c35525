"""Which attention calls a fused kernel of PyTorch computes, and how they are handed to it."""

import torch
from torch import Tensor

from . import flash
from .scoring import Scoring
from .shapes import HeadOutput, Rows, Values
from .slots import SinkLogit, SlotRow


def with_log_sum(scoring: Scoring, v: Values) -> tuple[HeadOutput, Rows] | None:
    """What the heads return and the log-sum-exp of every row, by one kernel; None where none computes both."""
    return flash.flash(*inputs(scoring, v)) if _is_plain_softmax(scoring) else None


def off_cpu(scoring: Scoring, v: Values) -> HeadOutput | None:
    """What the heads return, by the fused kernel of another device; None on a CPU, or where no kernel computes it."""
    is_fused = scoring.q.device.type != "cpu" and _is_plain_softmax(scoring)
    return flash.sdpa(*inputs(scoring, v)) if is_fused else None


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
