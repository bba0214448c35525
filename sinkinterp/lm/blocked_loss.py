"""The loss of a training step, a block of positions at a time, so that the logits are never all in memory.

Logits are by far the largest tensor of a small model: with GPT-2's vocabulary 64 sequences of 64 tokens have 0.8 GB.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

IGNORED = -100  # the label of tokens that transformers' losses leave out
BLOCK = {"cpu": 2**20}  # logits in a block: what stays in the cache of a core
LARGE_BLOCK = 2**27


def blocked_loss(
    hidden: Float[Tensor, "batch pos d_model"],
    unembed: Float[Tensor, "vocab d_model"],
    labels: Int[Tensor, "batch pos"],
    count: Tensor | int | None = None,
) -> Float[Tensor, ""]:
    """Cross-entropy of the labels but the first of each sequence, given the positions before, in nats.

    The sum over labels that are not IGNORED, divided by their number or by `count`. Equals transformers' loss of causal
    models, with its gradient. It cannot be differentiated twice where the logits are more than a block.
    """
    rows = hidden.flatten(0, 1)
    targets = F.pad(labels, (0, 1), value=IGNORED)[:, 1:].flatten()
    block = max(1, BLOCK.get(rows.device.type, LARGE_BLOCK) // len(unembed))
    count = torch.as_tensor((targets != IGNORED).sum() if count is None else count, device=rows.device)
    if len(targets) <= block:
        return F.cross_entropy(F.linear(rows, unembed).float(), targets, ignore_index=IGNORED, reduction="sum") / count
    return _InBlocks.apply(rows, unembed, targets, count, block)


class _InBlocks(torch.autograd.Function):
    """Computes the gradient together with the loss, while the logits of a block exist."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, unembed: Tensor, targets: Tensor, count: Tensor, block: int) -> Tensor:
        loss = torch.zeros((), device=hidden.device)
        hidden_grad = torch.empty_like(hidden, dtype=torch.float32)
        unembed_grad = torch.zeros_like(unembed, dtype=torch.float32)
        for x, target, x_grad in zip(*(rows.split(block) for rows in (hidden, targets, hidden_grad)), strict=True):
            counts = (target != IGNORED)[:, None]
            index = target[:, None].masked_fill(~counts, 0)
            logits = (x @ unembed.T).float()
            shifted = logits.sub_(logits.amax(-1, keepdim=True))  # in place: log_softmax takes three times as long
            at_target = shifted.gather(1, index)
            exps = shifted.exp_()
            total = exps.sum(-1, keepdim=True)
            loss -= ((at_target - total.log()) * counts).sum()
            logits_grad = exps.mul_(counts / total).scatter_add_(1, index, -counts.to(exps.dtype)).to(x.dtype)
            x_grad.copy_(logits_grad @ unembed)
            unembed_grad += logits_grad.T @ x
        ctx.save_for_backward(hidden_grad, unembed_grad, count)
        ctx.dtypes = hidden.dtype, unembed.dtype
        return loss / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        *sums, count = ctx.saved_tensors  # of float32: with a large count their means would be too small for float16
        means = (total.mul(outer / count).to(dtype) for total, dtype in zip(sums, ctx.dtypes, strict=True))
        return *means, None, None, None
