"""Reads the cells of many heads from a model in one forward pass."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...attention import tiles
from ...attention.call import AttentionCall
from ...backends.subject import CallRead, Subject
from ...data.tokens import TokenSet
from ...interventions.edit import Edit
from ...metrics.importance import proxy
from .channels import Channel
from .contents import Maps
from .detail import Detail

MapKeys = Sequence[tuple[int, int]]  # layer and head of each map


@dataclass(frozen=True)
class Cells:
    """What was read of some maps: cells by channel, the slot's column if there is one, and each layer's pairs."""

    channels: dict[Channel, Maps]
    slot: Float[np.ndarray, "map stat row"] | None
    pairs: dict[int, Int[np.ndarray, "row column"]]


def read_cells(subject: Subject, token_set: TokenSet, maps: MapKeys, detail: Detail, edits: Sequence[Edit]) -> Cells:
    """The cells of the chosen maps in one run of the model with `edits`."""
    chosen = _Chosen(maps, detail.stats)
    n = -(-token_set.tokens.shape[1] // detail.side)
    reads = {channel.name: chosen.read(_cells_of(channel, detail.side), n, n) for channel in detail.channels}
    reads["slot"] = chosen.read(lambda call: tiles.slot_cells(proxy(call), detail.side), n)
    reads["pairs"] = lambda call: tiles.pairs(call, detail.side)
    layers = subject.shape.attention_layers
    calls = subject.run(token_set.tokens, calls=reads, edits=edits).calls
    slot = chosen.of_maps(calls["slot"], layers)
    return Cells(
        channels={channel: chosen.of_maps(calls[channel.name], layers) for channel in detail.channels},
        slot=None if np.isnan(slot).all() else slot,
        pairs={layer: calls["pairs"][0, layers.index(layer)].cpu().numpy() for layer in chosen.heads},
    )


def _cells_of(channel: Channel, side: int) -> CallRead:
    return lambda call: tiles.cells(call, side, channel.read)


class _Chosen:
    """The chosen heads of each layer. A trace stacks layers, so answers are as wide as the layer with most heads."""

    def __init__(self, maps: MapKeys, stats: int) -> None:
        self.maps, self.stats = maps, stats
        self.heads: dict[int, list[int]] = {}
        for layer, head in maps:
            self.heads.setdefault(layer, []).append(head)
        self.width = max(map(len, self.heads.values()))

    def read(self, read: CallRead, *shape: int) -> CallRead:
        """The read of the chosen heads only: `batch width stat *shape`, NaN in places of no head."""

        def of_chosen(call: AttentionCall) -> Tensor:
            answer = call.q.new_full((len(call.q), self.width, self.stats, *shape), torch.nan, dtype=torch.float)
            heads = self.heads.get(call.layer)
            if heads is not None:
                answer[:, : len(heads)] = read(tiles.of_heads(call, heads))[:, :, : self.stats]
            return answer

        return of_chosen

    def of_maps(self, answers: Float[Tensor, "1 layer width *shape"], layers: Sequence[int]) -> np.ndarray:
        """The answers of the first sequence, one for each map."""
        rows = [layers.index(layer) for layer, _ in self.maps]
        columns = [self.heads[layer].index(head) for layer, head in self.maps]
        return answers[0, rows, columns].cpu().numpy()
