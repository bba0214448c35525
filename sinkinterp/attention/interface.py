"""The attention call that transformers' attention interface was asked to compute."""

from typing import Any

import torch
from torch import Tensor

from .call import AttentionCall
from .kernels import SOFTMAX
from .slots import SinkLogit


def call_of_interface(
    layer: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None, **extra: Any
) -> AttentionCall:
    """The call that transformers' attention interface was asked to compute.

    An additive mask is split into the pairs that it forbids and the bias that it adds to the others.
    """
    bias = extra.get("position_bias")
    if mask is not None and mask.dtype != torch.bool:
        allowed = mask > torch.finfo(mask.dtype).min / 2
        added = mask.masked_fill(~allowed, 0)
        bias = added if bias is None else bias + added
        mask, bias = allowed, bias if bias.any() else None
    logits = extra.get("s_aux")
    return AttentionCall(
        layer,
        q,
        k,
        v,
        scale=q.shape[-1] ** -0.5 if scale is None else scale,
        mask=mask,
        bias=bias,
        softcap=extra.get("softcap"),
        slot=extra.get("slot") if logits is None else SinkLogit(logits),
        kernel=extra.get("kernel") or SOFTMAX,
    )
