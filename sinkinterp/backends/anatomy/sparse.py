"""Attention modules that read few of the tokens: those that choose pairs, and those that keep summaries of tokens.

The first mask all other pairs themselves where their attention implementation is called "sdpa" or "eager". To one of
another name, as ours is, they give what they chose.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ...attention.call import AttentionCall
from ...attention.slots import SinkLogit, Summaries
from ...errors import InputError


def mask_of_chosen(module: Any, q: Tensor, n_keys: int, mask: Tensor | None, extra: Mapping[str, Any]) -> Tensor | None:
    """The mask without the pairs that a module has not chosen; the mask itself where attention is dense.

    extra: the keyword arguments of the attention interface. DeepSeek's modules choose keys, MiniMax's blocks of keys.
    """
    if extra.get("indices") is not None:
        return _and_chosen(mask, extra["indices"], n_keys)
    if extra.get("block_indices") is None:
        return mask
    positions = torch.arange(n_keys - q.shape[2], n_keys, device=q.device)[None]  # where there is no mask
    return module.indexer.build_block_mask(extra["block_indices"], mask, n_keys, q.dtype, q.device, positions)


def _and_chosen(mask: Tensor | None, indices: Int[Tensor, "batch query chosen"], n_keys: int) -> Tensor:
    chosen: Bool[Tensor, "batch 1 query key"] = torch.zeros(
        *indices.shape[:2], n_keys, dtype=torch.bool, device=indices.device
    ).scatter(-1, indices.long(), value=True)[:, None]
    if mask is None:
        return chosen
    return mask & chosen if mask.dtype == torch.bool else mask.masked_fill(~chosen, torch.finfo(mask.dtype).min)


def summaries_apart(module: Any, call: AttentionCall, is_whole: bool) -> AttentionCall:
    """The call with tokens alone as keys, and the summaries of tokens behind them in its slot, with the sink logit.

    Raises InputError for such a call unless `is_whole`: its queries are all tokens.
    """
    n_tokens, logit = call.q.shape[2], call.slot
    if getattr(module, "compressor", None) is None or (is_whole and call.k.shape[2] == n_tokens):
        return call
    if not is_whole:
        raise InputError(f"layer {call.layer} keeps summaries of tokens in its cache; give whole texts, without cache")
    assert isinstance(logit, SinkLogit)
    allowed, times = call.allowed(), call.q.shape[1] // call.k.shape[1]
    k, v = (x[:, :, n_tokens:].repeat_interleave(times, 1) for x in (call.k, call.v))
    slot = Summaries(k, v, allowed[..., n_tokens:], logit.logit)
    k, v = call.k[:, :, :n_tokens], call.v[:, :, :n_tokens]
    return replace(call, k=k, v=v, mask=allowed[..., :n_tokens], slot=slot)
