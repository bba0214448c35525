"""Attention maps of any length in few cells: the largest and the mean value of each square, with no T x T map made.

A map is cut into squares of `side` x `side` pairs, the last row and column of squares being cut short by the ends.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from einops import rearrange, reduce
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..errors import InputError
from .call import AttentionCall
from .fixed import FixedPattern
from .kernels import SOFTMAX
from .slots import SinkLogit, Slot, SlotRow

Index = Int[Tensor, " some_key"]
Tile = Callable[[AttentionCall, Index, slice], Float[Tensor, "batch head some_query some_key"]]
Cells = Float[Tensor, "batch head 2 row column"]
Blocks = Iterator[tuple[Index, slice]]
SPAN = 512  # queries and keys of a block, at least `side` of each: 26 MB of fp32 scores for 25 heads


def weights(call: AttentionCall, keys: Index, rows: slice) -> Float[Tensor, "batch head some_query some_key"]:
    """Attention weights."""
    return call.weights_at(keys, rows)


def scores(call: AttentionCall, keys: Index, rows: slice) -> Float[Tensor, "batch head some_query some_key"]:
    """Scores: what the kernel turns into weights, bias and softcap counted in."""
    return call.scores(keys, rows)


def cosines(call: AttentionCall, keys: Index, rows: slice) -> Float[Tensor, "batch head some_query some_key"]:
    """cos(q_i, k_j) of the features that are multiplied, -1..1; a vector of zeros has cosine 0."""
    feature = call.kernel.feature
    q, k = (F.normalize(feature(t.float()), dim=-1) for t in (call.q[:, :, rows], call.k[:, :, keys]))
    return _products(call, q, k, 1.0)


def norm_products(call: AttentionCall, keys: Index, rows: slice) -> Float[Tensor, "batch head some_query some_key"]:
    """|q_i| |k_j| * scale: what the score would be at a cosine of 1, bias and softcap left out."""
    feature = call.kernel.feature
    q, k = (feature(t.float()).norm(dim=-1, keepdim=True) for t in (call.q[:, :, rows], call.k[:, :, keys]))
    return _products(call, q, k, call.scale)


def cells(call: AttentionCall, side: int, tile: Tile = weights) -> Cells:
    """[largest, mean] value of each square over the pairs that may attend; NaN where none may.

    `tile` says of what: `weights`, `scores`, `cosines` or `norm_products`. Exact up to fp32 sums. The slot's column is
    `slot_cells`. Raises InputError unless `side` is at least 1.
    """
    n_rows, n_columns = _grid(call, side)
    found = call.q.new_full((*call.q.shape[:2], 2, n_rows, n_columns), torch.nan, dtype=torch.float)
    for keys, rows in _blocks(call, side):
        allowed = call.allowed(keys, rows)
        values = tile(call, keys, rows)
        count = _pooled(allowed.float(), side, "sum")
        largest = _pooled(values.masked_fill(~allowed, -torch.inf), side, "max")
        mean = _pooled(values.masked_fill(~allowed, 0), side, "sum") / count.clamp(min=1)
        block = torch.stack((largest, mean), 2).masked_fill((count == 0)[:, :, None], torch.nan)
        top, left = rows.start // side, int(keys[0]) // side
        found[..., top : top + block.shape[-2], left : left + block.shape[-1]] = block
    return found


def pairs(call: AttentionCall, side: int) -> Int[Tensor, "batch row column"]:
    """How many pairs of each square may attend, in the first head; what weighs the means of squares that are joined."""
    n_rows, n_columns = _grid(call, side)
    found = torch.zeros((len(call.q), n_rows, n_columns), dtype=torch.long, device=call.q.device)
    for keys, rows in _blocks(call, side):
        count = _pooled(call.allowed(keys, rows)[:, :1].double(), side, "sum")[:, 0].long()
        top, left = rows.start // side, int(keys[0]) // side
        found[:, top : top + count.shape[-2], left : left + count.shape[-1]] = count
    return found


def slot_cells(call: AttentionCall, side: int) -> Float[Tensor, "batch head 2 row"]:
    """[largest, mean] attention to the slot over each run of `side` queries; NaN without a slot."""
    n_rows, _ = _grid(call, side)
    column = call.slot_weights()
    if column is None:
        return call.q.new_full((*call.q.shape[:2], 2, n_rows), torch.nan, dtype=torch.float)
    runs = [column[..., i : i + side] for i in range(0, column.shape[-1], side)]
    return torch.stack([torch.stack((run.amax(-1), run.mean(-1)), -1) for run in runs], -1)


def of_heads(call: AttentionCall, heads: Sequence[int]) -> AttentionCall:
    """The same call with some of its heads only, each beside its own key head."""
    chosen = torch.tensor(heads, device=call.q.device)
    kv_heads = chosen // (call.q.shape[1] // call.k.shape[1])
    mask, bias = (t if t is None or t.shape[1] == 1 else t[:, chosen] for t in (call.mask, call.bias))
    some = replace(
        call.computed if isinstance(call, FixedPattern) else call,
        q=call.q[:, chosen], k=call.k[:, kv_heads], v=call.v[:, kv_heads], mask=mask, bias=bias,
        slot=_slot_of(call.slot, chosen),
    )  # fmt: skip
    return FixedPattern.of(some, call.pattern()[:, chosen]) if isinstance(call, FixedPattern) else some


def _slot_of(slot: Slot, heads: Int[Tensor, " head"]) -> Slot:
    if isinstance(slot, SlotRow):
        return SlotRow(slot.key[heads], slot.value[heads])
    return SinkLogit(slot.logit[heads]) if isinstance(slot, SinkLogit) else None


def _products(call: AttentionCall, q: Tensor, k: Tensor, scale: float) -> Tensor:
    plain = AttentionCall(call.layer, q, k, k, scale, kernel=SOFTMAX)
    return plain.scores()


def _grid(call: AttentionCall, side: int) -> tuple[int, int]:
    if side < 1:
        raise InputError(f"side is how many tokens a cell covers, at least 1; got {side}")
    return -(-call.q.shape[2] // side), -(-call.k.shape[2] // side)


def _blocks(call: AttentionCall, side: int) -> Blocks:
    """Keys and queries of every block in which some pair may attend; blocks begin where squares begin."""
    span = side * max(1, SPAN // side)
    for start in range(0, call.q.shape[2], span):
        rows = slice(start, min(start + span, call.q.shape[2]))
        for keys in call.keys.split(span):
            if _any(call, keys, rows):
                yield keys, rows


def _any(call: AttentionCall, keys: Index, rows: slice) -> bool:
    if call.mask is not None:
        return bool(call.mask[..., rows, keys].any())
    return int(keys[0]) <= rows.stop - 1 + call.k.shape[2] - call.q.shape[2]


def _pooled(
    values: Float[Tensor, "#batch #head some_query some_key"] | Bool[Tensor, "#batch #head some_query some_key"],
    side: int,
    how: str,
) -> Float[Tensor, "#batch #head row column"]:
    fill = -torch.inf if how == "max" else 0
    down, right = (-length % side for length in values.shape[-2:])
    values = F.pad(values, (0, right, 0, down), value=fill)
    squares = rearrange(values, "b h (row i) (column j) -> b h row column i j", i=side, j=side)
    return reduce(squares, "b h row column i j -> b h row column", how)
