"""Small atlases with known numbers."""

import json
import re
from dataclasses import replace

import numpy as np
import torch

from sinkinterp.attention.maps import SCORE, WEIGHT
from sinkinterp.pages.atlas import Atlas, Detail, Run
from sinkinterp.report.readings import Protocol
from sinkinterp.report.report import Report
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


PROTOCOL = Protocol("a model", 1, 7, "float32", "none", "a text", "", 0, (), "queries that can see the key", "", {})


def report_of(importance, slot=None, layers=LAYERS, **protocol):
    """A report of a text of the tokens 0, 1, 2, ... whose positions have this importance, `layer head pos`."""
    n_layers, n_heads, length = importance.shape
    alpha, norms = torch.tensor(importance, dtype=torch.float32)[None], torch.ones(1, n_layers, n_heads, length)
    slots = None if slot is None else torch.tensor(slot, dtype=torch.float32)[None]
    return Report(
        importance=alpha, raw_importance=alpha, null=alpha * 0 + 0.1, bias_null=alpha * 0 + 0.1, slot_importance=slots,
        slot_null=None if slots is None else slots * 0 + 0.1, off_sequence=torch.zeros(1, n_layers, n_heads),
        residual_norms=torch.ones(1, n_layers + 1, length), key_norms=norms, value_norms=norms,
        tokens=torch.arange(length)[None], positions=tuple(range(length)), attention_layers=tuple(layers),
        protocol=replace(PROTOCOL, length=length, **protocol),
    )  # fmt: skip


def small_atlas(length=7, side=1, states=("as it is",), slot=False, bits=16, words=NASTY, tables=None, **protocol):
    """Two layers (1 and 4) of three heads on `length` tokens; the dense weights of each state come second."""
    dense = [patterns(length, seed)[0] for seed in range(len(states))]
    stats = range(1 if side == 1 else 2)
    maps = [(layer, head) for layer in LAYERS for head in range(HEADS)]
    drawn = np.random.default_rng(7)
    detail = Detail(side, bits, (WEIGHT, SCORE) if side == 1 else (WEIGHT,))
    texts = [*words, *(f"w{i}" for i in range(length))][:length]

    def run(i):
        weights, scores = patterns(length, i)
        channels = {WEIGHT: np.stack([cells_of(weights, side, stat) for stat in stats], 1), SCORE: scores[:, None]}
        importance, of_slot = drawn.random((len(LAYERS), HEADS, length)), drawn.random((len(LAYERS), HEADS))
        report = report_of(importance, of_slot if slot else None, **protocol)
        column = drawn.random((len(maps), len(stats), -(-length // side))) if slot else None
        return Run(report, channels, column, dict.fromkeys(LAYERS, pairs_of(length, side)))

    runs = {name: run(i) for i, name in enumerate(states)}
    if tables is None:
        tables = (Table.of("a table", "its note", ({"name": "x", "n": 0.5},)),)
    return Atlas(maps, detail, runs, texts.__getitem__, tables), dense


def importances(atlas):
    """Importance of every position in every head, in each run; that of the slot last."""
    found = []
    for report in atlas.reports:
        slot = [] if report.slot_importance is None else [report.slot_importance[..., None]]
        found.append(torch.cat((report.importance, *slot), -1)[0].numpy())
    return found


def about(html):
    """The data that a page of heads holds."""
    return json.loads(re.search(r'<script type="application/json" id="about">(.*?)</script>', html, re.S)[1])


def decoded(scale, codes):
    """The values of codes, as `cells.js` decodes them."""
    steps = (codes.astype(float) - (2 if scale.is_log else 1)) * scale.step
    values = scale.low * np.exp(steps) if scale.is_log else scale.low + steps
    return np.where(codes == 0, np.nan, np.where(scale.is_log & (codes == 1), 0, values))
