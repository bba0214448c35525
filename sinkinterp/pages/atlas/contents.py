"""What an atlas shows: texts, and the numbers of every map as arrays, one `Channel` for each kind of number."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from ...attention import maps
from ...metrics.importance import proxy
from ...table import Table
from .codes import Scale, Values, linear, logarithmic

SLOT = -1  # among `places`: the column that belongs to no token

Maps = Float[np.ndarray, "map stat row column"]


def _from_zero_to_one(scale: Scale) -> tuple[float, float]:
    return 0.0, max(1.0, scale.high)


def _from_zero(scale: Scale) -> tuple[float, float]:
    return 0.0, scale.high


def _around_zero(scale: Scale) -> tuple[float, float]:
    largest = max(abs(scale.low), abs(scale.high))
    return -largest, largest


@dataclass(frozen=True)
class Channel:
    """A number of every pair of query and key.

    title: what stands beside the colours. read: its values in a block of a call. scale_of: how values are stored.
    colour_range: the values at the two ends of the colours.
    """

    name: str
    title: str
    read: maps.Quantity
    scale_of: Callable[[Values, int], Scale]
    colour_range: Callable[[Scale], tuple[float, float]]


WEIGHT = Channel(
    "weight",
    "attention weight",
    lambda call, keys, rows: maps.weights(proxy(call), keys, rows),
    logarithmic,
    _from_zero_to_one,
)
SCORE = Channel("score", "score", maps.scores, linear, _around_zero)
COSINE = Channel("cosine", "cos(q, k)", maps.cosines, linear, lambda scale: (-1.0, 1.0))
NORM_PRODUCT = Channel("norm product", "|q| |k| × scale", maps.norm_products, linear, _from_zero)


CHANNELS = (WEIGHT, SCORE, COSINE, NORM_PRODUCT)


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
    channels: Mapping[Channel, Maps]
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
