"""Small atlases with known numbers."""

import json
import re

import numpy as np

from sinkinterp.attention.maps import SCORE, WEIGHT
from sinkinterp.pages.atlas import SLOT, Atlas, State
from sinkinterp.table import Table

NASTY = ("<s>", "<script>window.__pwned=1</script>", '"&<>', "\n", " the", "</script>", "<img src=x onerror=__pwned=1>")
LAYERS, HEADS = (1, 4), 3


def patterns(length, seed, maps=len(LAYERS) * HEADS):
    """Causal softmax patterns and their scores, NaN above the diagonal."""
    scores = 2 * np.random.default_rng(seed).normal(size=(maps, length, length))
    scores = np.where(np.tril(np.ones((length, length), bool)), scores, np.nan)
    weights = np.exp(scores)
    return weights / np.nansum(weights, -1, keepdims=True), scores


def cells_of(dense, side, stat):
    """Squares of the dense maps by numpy alone: their largest value (0) or their mean (1)."""
    spare = -dense.shape[-1] % side
    padded = np.pad(dense, [(0, 0)] * (dense.ndim - 2) + [(0, spare), (0, spare)], constant_values=np.nan)
    n = padded.shape[-1] // side
    squares = padded.reshape(*dense.shape[:-2], n, side, n, side)
    empty = np.isnan(squares).all((-3, -1))
    count = np.maximum((~np.isnan(squares)).sum((-3, -1)), 1)
    found = np.nansum(squares, (-3, -1)) / count if stat else np.nan_to_num(squares, nan=-np.inf).max((-3, -1))
    return np.where(empty, np.nan, found)


def pairs_of(length, side):
    seen = np.tril(np.ones((length, length), int))
    padded = np.pad(seen, (0, -length % side))
    n = len(padded) // side
    return padded.reshape(n, side, n, side).sum((1, 3))


def small_atlas(length=7, side=1, states=("as it is",), slot=False, bits=16, **fields):
    """Two layers (1 and 4) of three heads on `length` tokens; the dense weights of each state come second."""
    dense = [patterns(length, seed)[0] for seed in range(len(states))]
    stats = range(1 if side == 1 else 2)
    maps = [(layer, head) for layer in LAYERS for head in range(HEADS)]
    drawn = np.random.default_rng(7)

    def state(i, name):
        weights, scores = patterns(length, i)
        channels = {WEIGHT: np.stack([cells_of(weights, side, stat) for stat in stats], 1)}
        if side == 1:
            channels[SCORE] = scores[:, None]
        importance = drawn.random((len(LAYERS), HEADS, length + slot))
        column = drawn.random((len(maps), len(stats), -(-length // side))) if slot else None
        return State(name, channels, importance, column)

    values = {
        "model": "a model",
        "tokens": [*NASTY, *(f"w{i}" for i in range(length))][:length],
        "layers": LAYERS,
        "maps": maps,
        "side": side,
        "pairs": dict.fromkeys(LAYERS, pairs_of(length, side)),
        "places": [*range(length), *([SLOT] if slot else [])],
        "states": [state(i, name) for i, name in enumerate(states)],
        "bits": bits,
        "note": "n=1, T=7",
        "tables": (Table.of("a table", "its note", ({"name": "x", "n": 0.5},)),),
    }
    return Atlas(**{**values, **fields}), dense


def about(html):
    """The data that a page of heads holds."""
    return json.loads(re.search(r'<script type="application/json" id="about">(.*?)</script>', html, re.S)[1])


def decoded(scale, codes):
    """The values of codes, as `cells.js` decodes them."""
    steps = (codes.astype(float) - (2 if scale.is_log else 1)) * scale.step
    values = scale.low * np.exp(steps) if scale.is_log else scale.low + steps
    return np.where(codes == 0, np.nan, np.where(scale.is_log & (codes == 1), 0, values))
