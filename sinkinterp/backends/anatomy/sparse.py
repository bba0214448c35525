"""The pairs that a sparse attention module has chosen, as a mask.

Such modules mask the other pairs themselves where their attention implementation is called "sdpa" or "eager". To one of
another name, as ours is, they give what they chose.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def mask_of_chosen(
    module: Any, q: Tensor, n_keys: int, mask: Tensor | None, extra: Mapping[str, Any]
) -> Tensor | None:
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
