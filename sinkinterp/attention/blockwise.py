"""Un-normalised attention in memory linear in T, for training: keys come in runs, computed again on the way back.

Where Z = 1, keys contribute one by one, so no weight need be kept for the others: a T x T map exists in neither
direction. Sums are in fp32 whatever the precision of the call.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .call import AttentionCall
from .flash import key_blocks
from .normalisers import Unit
from .slots import SlotRow

LONG = 512  # keys; below, the dense pattern is faster and small

Output = Float[Tensor, "batch head query d_value"]


def is_worth_it(call: AttentionCall) -> bool:
    """Whether `output` can and should stand in for the call's own."""
    return isinstance(call.kernel.normaliser, Unit) and call.k.shape[2] > LONG


def output(call: AttentionCall, block: int = 128) -> Output:
    """What the call returns, for a kernel without normalisation, `block` keys at a time."""
    call._scaled_queries  # noqa: B018  made once, outside of what is computed again
    z = _slot_part(call)
    causal = call.mask is None
    for keys in key_blocks(call.keys, block):
        first = max(int(keys[0]) + call.q.shape[2] - call.k.shape[2], 0) if causal else 0
        part = checkpoint(_block_part, call, keys, slice(first, None), use_reentrant=False)
        z = torch.cat((z[:, :, :first], z[:, :, first:] + part), 2) if first else z + part
    return z.to(call.v.dtype)


def _block_part(call: AttentionCall, keys: Int[Tensor, " some_key"], rows: slice) -> Tensor:
    weights = call.kernel.pattern(call.scores(keys, rows), call.allowed(keys, rows))
    v = call.v[:, :, keys].float()
    weights = weights.unflatten(1, (v.shape[1], -1))
    return torch.einsum("bkgij,bkjd->bkgid", weights, v).flatten(1, 2)


def _slot_part(call: AttentionCall) -> Tensor:
    z = call.q.new_zeros((*call.q.shape[:3], call.v.shape[-1]), dtype=torch.float)
    scores = call.slot_scores()
    if scores is None or not isinstance(call.slot, SlotRow):
        return z
    weights = call.kernel.pattern(scores, torch.ones_like(scores, dtype=torch.bool))
    return z + torch.einsum("bhij,hjd->bhid", weights, call.slot.value.float())
