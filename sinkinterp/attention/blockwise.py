"""Attention without normalisation in memory linear in T, for training: blocks of keys, computed again for gradients.

If Z = 1, the output is a sum over keys, so the weights of one block are not needed for the others. No T x T map
exists, forward or backward. Sums are in fp32 for any precision of the call.
"""

import torch
from torch.utils.checkpoint import checkpoint

from .call import AttentionCall
from .kernels import Unit
from .masks import key_blocks
from .shapes import HeadOutput, KeyIndex
from .slots import SlotRow

LONG = 512  # keys; below, the dense pattern is faster and small


def is_worth_it(call: AttentionCall) -> bool:
    """Tells if `output` computes the same as the call's own `output`, and should replace it."""
    return isinstance(call.kernel.normaliser, Unit) and call.set_pattern is None and call.k.shape[2] > LONG


def output(call: AttentionCall, block: int = 128) -> HeadOutput:
    """The output of the heads, under a kernel without normalisation, `block` keys at a time."""
    call.scaled_queries  # noqa: B018  computed here, so that the checkpoints below do not compute it again
    z = _slot_part(call)
    for keys in key_blocks(call.keys, block):
        first = call.visibility.regions(keys)[0].start or 0  # the first query that may see any of the keys
        part = checkpoint(_block_part, call, keys, slice(first, None), use_reentrant=False)
        z = torch.cat((z[:, :, :first], z[:, :, first:] + part), 2) if first else z + part
    return z.to(call.v.dtype)


def _block_part(call: AttentionCall, keys: KeyIndex, rows: slice) -> HeadOutput:
    """What a run of queries receives from some of the keys."""
    weights = call.kernel.pattern(call.scores(keys, rows), call.allowed(keys, rows), call.queries(rows))
    v = call.v[:, :, keys].float()
    weights = weights.unflatten(1, (v.shape[1], -1))
    return torch.einsum("bkgij,bkjd->bkgid", weights, v).flatten(1, 2)


def _slot_part(call: AttentionCall) -> HeadOutput:
    z = call.q.new_zeros((*call.q.shape[:3], call.v.shape[-1]), dtype=torch.float)
    scores = call.slot_scores()
    if scores is None or not isinstance(call.slot, SlotRow):
        return z
    weights = call.kernel.pattern(scores, torch.ones_like(scores, dtype=torch.bool), call.queries())
    return z + torch.einsum("bhij,hjd->bhid", weights, call.slot.value.float())
