"""The mask of a rolling cache, in one dense pass: on every backend, and with every read."""

from dataclasses import dataclass, replace

import torch
from typing_extensions import override

from ..attention.call import AttentionCall
from ..attention.masks import Prefix, Window
from ..errors import InputError
from .edit import Edit


@dataclass(frozen=True)
class Evict(Edit):
    """Queries see the first `sinks` keys and the last `window - sinks` up to their own, but not those between.

    Positions stay those of the text. Deeper layers read activations that were made under the same mask, as in a cache
    (arXiv:2309.17453). Raises InputError unless `window` is wider than `sinks`.
    """

    window: int
    sinks: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.sinks < self.window:
            raise InputError(
                f"a cache of {self.window} tokens with {self.sinks} sinks keeps no recent token, or no such number; "
                "ask for 0 sinks or more and a wider window"
            )

    @override
    def call(self, call: AttentionCall) -> AttentionCall:
        n_queries, n_keys = call.q.shape[2], call.k.shape[2]
        key = call.keys
        query = key[n_keys - n_queries :, None]
        recent = Window(self.window - self.sinks)
        kept = (recent | Prefix(self.sinks) if self.sinks else recent).allows(query, key[None])
        return replace(call, mask=torch.logical_and(call.allowed(), kept))
