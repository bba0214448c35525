"""What an atlas shows: texts, and the numbers of every map as arrays, by the `Quantity` that they are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from ...attention.maps import Quantity
from ...table import Table

SLOT = -1  # among `places`: the column that belongs to no token

Maps = Float[np.ndarray, "map stat row column"]


@dataclass(frozen=True)
class State:
    """What the heads do in one run of the model.

    channels: cells of every map, NaN where no pair may attend. `stat` is [largest, mean], or one where a cell is one
    pair. Weights are always among them.
    importance: of each place, for every head of the model.
    slot: attention to the off-sequence column, if there is one.
    received: importance of every position, mean over the maps; None where cells are single pairs and so tell it.
    """

    name: str
    channels: Mapping[Quantity, Maps]
    importance: Float[np.ndarray, "layer head place"]
    slot: Float[np.ndarray, "map stat row"] | None = None
    received: Float[np.ndarray, " pos"] | None = None


@dataclass(frozen=True)
class Atlas:
    """What the page shows.

    tokens: their text.
    layers: the attention layers, which are the rows of `importance`.
    maps: (layer, head) of each map, sorted.
    side: how many tokens a cell covers.
    pairs: how many pairs of each cell may attend, by layer.
    places: the positions of `importance`; `SLOT` is the slot.
    states: one run of the model, or two, before and after an intervention.
    bits: of the codes that cells are stored in.
    """

    model: str
    tokens: Sequence[str]
    layers: Sequence[int]
    maps: Sequence[tuple[int, int]]
    side: int
    pairs: Mapping[int, Int[np.ndarray, "row column"]]
    places: Sequence[int]
    states: Sequence[State]
    bits: int = 16
    lead: str = ""
    note: str = ""
    protocol: str = ""
    tables: Sequence[Table] = field(default=())

    def by_layer(self) -> dict[int, list[int]]:
        """The indices of each layer's maps."""
        indices: dict[int, list[int]] = {}
        for i, (layer, _) in enumerate(self.maps):
            indices.setdefault(layer, []).append(i)
        return indices
