"""The numbers of a pair of query and key that a map can show: one `Channel` for each."""

from collections.abc import Callable
from dataclasses import dataclass

from ...attention import tiles
from ...metrics.importance import proxy
from .codes import Scale, Values, linear, logarithmic


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
    read: tiles.Tile
    scale_of: Callable[[Values, int], Scale]
    colour_range: Callable[[Scale], tuple[float, float]]


WEIGHT = Channel(
    "weight",
    "attention weight",
    lambda call, keys, rows: tiles.weights(proxy(call), keys, rows),
    logarithmic,
    _from_zero_to_one,
)
SCORE = Channel("score", "score", tiles.scores, linear, _around_zero)
COSINE = Channel("cosine", "cos(q, k)", tiles.cosines, linear, lambda scale: (-1.0, 1.0))
NORM_PRODUCT = Channel("norm product", "|q| |k| × scale", tiles.norm_products, linear, _from_zero)

CHANNELS = (WEIGHT, SCORE, COSINE, NORM_PRODUCT)
