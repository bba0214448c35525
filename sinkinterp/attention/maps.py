"""Attention maps of any length in few cells: the largest and the mean value of each square of pairs.

No T x T map is made. A map is cut into squares of `side` x `side` pairs. The last row and the last column of squares
may be cut short.

A pair has four quantities. Weights are proxies where rows do not sum to one. Scores are what the kernel turns into
weights, with bias and softcap. Cosines and norm products are of queries and keys after the feature map. A vector of
zeros has cosine 0. A norm product times the scale is the score at a cosine of 1, without bias and softcap.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from ..checks import whole_number
from .call import AttentionCall
from .masks import ALL
from .shapes import KeyIndex, Scores, SomePairs

Cells = Float[Tensor, "batch head 2 row column"]
SPAN = 512  # a run of queries has at most SPAN^2 pairs: 26 MB of fp32 scores for 25 heads


@dataclass(frozen=True)
class Quantity:
    """A number of every pair of a query and a key.

    values_of: given a call, the function of some keys and a run of queries that returns their values.
    low, high: the bounds of the values; None if unbounded. decimals: how many a picture shows.
    """

    name: str
    title: str
    values_of: Callable[[AttentionCall], Callable[[KeyIndex, slice], SomePairs]]
    low: float | None = None
    high: float | None = None
    decimals: int = 2


def _cosines(call: AttentionCall) -> Callable[[KeyIndex, slice], SomePairs]:
    q, k = (F.normalize(call.kernel.feature(t.float()), dim=-1) for t in (call.q, call.k))
    return AttentionCall(call.layer, q, k, k, 1.0).scores


def _norm_products(call: AttentionCall) -> Callable[[KeyIndex, slice], SomePairs]:
    q, k = (call.kernel.feature(t.float()).norm(dim=-1, keepdim=True) for t in (call.q, call.k))
    return AttentionCall(call.layer, q, k, k, call.scale).scores


WEIGHT = Quantity("weight", "attention weight", lambda call: call.proxy().weights_at, 0.0, 1.0, decimals=4)
SCORE = Quantity("score", "score", lambda call: call.scores)
COSINE = Quantity("cosine", "cosine of query and key", _cosines, -1.0, 1.0)
NORM_PRODUCT = Quantity("norm product", "|q| |k| x scale", _norm_products, 0.0)
QUANTITIES = (WEIGHT, SCORE, COSINE, NORM_PRODUCT)


def cells(call: AttentionCall, side: int, quantity: Quantity = WEIGHT) -> Cells:
    """[largest, mean] value of each square over the pairs that may attend; NaN where none may.

    quantity: one of `QUANTITIES`. Exact up to fp32 sums. For the slot, see `slot_cells`. Raises InputError unless
    `side` is at least 1.
    """
    shape = (*call.q.shape[:2], *_grid(call, side))
    largest = torch.full(shape, -torch.inf, device=call.q.device)
    total, count = torch.zeros_like(largest), torch.zeros_like(largest)
    values_at = quantity.values_of(call)
    for keys, rows, place in _runs(call, side):
        allowed = call.allowed(keys, rows)
        values = values_at(keys, rows)
        shown = _squares(values.masked_fill(~allowed, -torch.inf), side, -torch.inf)
        largest[place] = largest[place].maximum(shown.amax((-2, -1)))
        total[place] += _squares(values.masked_fill(~allowed, 0), side).sum((-2, -1))
        count[place] += _squares(allowed.float(), side).sum((-2, -1))
    return torch.stack((largest, total / count.clamp(min=1)), 2).masked_fill((count == 0)[:, :, None], torch.nan)


def pairs(call: AttentionCall, side: int) -> Int[Tensor, "batch row column"]:
    """How many pairs of each square may attend, in the first head; the weights of the means when squares are joined."""
    counts = torch.zeros((len(call.q), *_grid(call, side)), dtype=torch.long, device=call.q.device)
    for keys, rows, place in _runs(call, side):
        counts[place] += _squares(call.allowed(keys, rows)[:, 0].long(), side).sum((-2, -1))
    return counts


def slot_cells(call: AttentionCall, side: int) -> Float[Tensor, "batch head 2 row"]:
    """[largest, mean] weight, or proxy, of the slot over each run of `side` queries; NaN without a slot."""
    n_rows, _ = _grid(call, side)
    column = call.proxy().slot_weights()
    if column is None:
        return call.q.new_full((*call.q.shape[:2], 2, n_rows), torch.nan, dtype=torch.float)
    runs = column.split(side, -1)
    return torch.stack([torch.stack((run.amax(-1), run.mean(-1)), -1) for run in runs], -1)


def visible(call: AttentionCall, quantity: Quantity) -> Scores:
    """The quantity of all pairs; NaN where the query cannot see the key. For small T."""
    return quantity.values_of(call)(call.keys, ALL).masked_fill(~call.allowed(), torch.nan)


def pooled(values: Float[Tensor, "*map row column"], side: int) -> Float[Tensor, "*map some_row some_column"]:
    """The largest value of each square of `side` x `side`; NaN for a square without any."""
    largest = _squares(values.masked_fill(values.isnan(), -torch.inf), side, -torch.inf).amax((-2, -1))
    return largest.masked_fill(largest == -torch.inf, torch.nan)


def of_heads(call: AttentionCall, heads: Sequence[int]) -> AttentionCall:
    """The same call with some of its heads only, each with its own key head."""
    chosen = torch.tensor(heads, device=call.q.device)
    kv_heads = chosen // (call.q.shape[1] // call.k.shape[1])
    weights = None if call.set_pattern is None else call.set_pattern.weights
    mask, bias, weights = (t if t is None or t.shape[1] == 1 else t[:, chosen] for t in (call.mask, call.bias, weights))
    q, k, v = call.q[:, chosen], call.k[:, kv_heads], call.v[:, kv_heads]
    slot = None if call.slot is None else call.slot.of_heads(chosen)
    fewer = replace(call.with_pattern(None), q=q, k=k, v=v, mask=mask, bias=bias, slot=slot)
    return fewer.with_pattern(weights)


def _grid(call: AttentionCall, side: int) -> tuple[int, int]:
    side = whole_number(side, "side, how many tokens a cell covers,", 1)
    return -(-call.q.shape[2] // side), -(-call.k.shape[2] // side)


def _runs(call: AttentionCall, side: int) -> Iterator[tuple[KeyIndex, slice, tuple[Any, ...]]]:
    """Runs of queries with the keys that they may see, and the place of their squares, of which a long one is cut."""
    n_queries, length = call.q.shape[2], max(1, SPAN**2 // call.k.shape[2])
    block = side * max(1, length // side)
    for top in range(0, n_queries, block):
        end = min(top + block, n_queries)
        for start in range(top, end, length):
            rows = slice(start, min(start + length, end))
            n_keys = call.visibility.part(rows).n_keys
            place = (..., slice(start // side, -(-rows.stop // side)), slice(0, -(-n_keys // side)))
            yield call.keys[:n_keys], rows, place


def _squares(values: Tensor, side: int, fill: float = 0.0) -> Shaped[Tensor, "*map row column height width"]:
    """Pairs in squares of `side` x `side`, or fewer where there are no more; what the last squares lack is `fill`."""
    height, width = (min(side, length) for length in values.shape[-2:])
    values = F.pad(values, (0, -values.shape[-1] % width, 0, -values.shape[-2] % height), value=fill)
    return rearrange(values, "... (row i) (column j) -> ... row column i j", i=height, j=width)
