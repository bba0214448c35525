"""Nulls: the importance that a position would have without any content, by mask and bias alone."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention.call import AttentionCall
from ..attention.shapes import KeyIndex
from ..attention.slots import SinkLogit
from .importance import VISIBLE, Convention, importance
from .shapes import Importance


def uniform_importance(call: AttentionCall, positions: KeyIndex, convention: Convention = VISIBLE) -> Importance:
    """Importance if every query attended equally to all columns that it can see; H_T / T for causal key 0."""
    return convention.uniform(call, positions)


def content_free_importance(call: AttentionCall, positions: KeyIndex, convention: Convention = VISIBLE) -> Importance:
    """Importance if position bias, mask and learned sink logits alone made every score.

    The uniform null where there is neither bias nor logit. The release's bucket-index positions give alpha_1 = 0.334
    at T = 64 this way, with nothing learned.
    """
    if not is_biased(call):
        return convention.uniform(call, positions)
    shared = all(part is None or len(part) == 1 for part in (call.bias, call.mask))
    sequences = slice(1 if shared else None)
    q, k, v = call.q[sequences], call.k[sequences], call.v[sequences]
    empty = replace(call.with_pattern(None), q=torch.zeros_like(q), k=torch.zeros_like(k), v=v)
    return importance(empty, positions, convention).expand(*call.q.shape[:2], -1)


def uniform_and_content_free(
    call: AttentionCall, positions: KeyIndex, convention: Convention = VISIBLE
) -> Float[Tensor, "batch 2 head pos"]:
    """`uniform_importance` beside `content_free_importance`, computed once where they are the same."""
    uniform = convention.uniform(call, positions)
    return torch.stack(
        (uniform, content_free_importance(call, positions, convention) if is_biased(call) else uniform), 1
    )


def is_biased(call: AttentionCall) -> bool:
    """Whether anything but content and mask moves attention: a position bias, or a learned sink logit."""
    return call.bias is not None or isinstance(call.slot, SinkLogit)


def uniform_slot_importance(call: AttentionCall) -> Float[Tensor, "batch head"]:
    """The null of `slot_importance`; 0 without a slot."""
    share = (1 / call.columns_seen().clamp(min=1)).mean(-1) * (call.slot is not None)
    return share.expand(*call.q.shape[:2])
