"""The attention call that transformers' attention interface was asked to compute."""

from collections.abc import Mapping
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

    An additive mask is split into the pairs that it forbids and the bias that it adds to the others. `is_causal` in
    `extra` (see `is_causal_call`) says what no mask means: without it, or where it is true, queries see no later key;
    where it is false, they see all keys.
    """
    bias = extra.get("position_bias")
    if mask is None and extra.get("is_causal") is False:
        mask = torch.ones(1, 1, q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
        bias = None if bias is None or not bias.any() else bias  # T5's cross-attention adds zeros
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


def is_causal_call(module: Any, extra: Mapping[str, Any]) -> bool:
    """Whether an attention module that gives the interface no mask means causal attention, as transformers decides it.

    extra: the keyword arguments of the interface.
    """
    is_causal = extra.get("is_causal")
    return bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
