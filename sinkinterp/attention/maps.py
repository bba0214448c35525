"""Attention maps of any length in few cells: the largest and the mean value of each square of pairs.

No T x T map is made. A map is cut into squares of `side` x `side` pairs. The last row and the last column of squares
may be cut short.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from ..errors import InputError
from .call import AttentionCall
from .shapes import KeyIndex, SomePairs

Quantity = Callable[[AttentionCall, KeyIndex, slice], SomePairs]
Cells = Float[Tensor, "batch head 2 row column"]
SPAN = 512  # at most so many queries and keys in a block, unless `side` is more: 26 MB of fp32 scores for 25 heads


def weights(call: AttentionCall, keys: KeyIndex, rows: slice) -> SomePairs:
    """Attention weights."""
    return call.weights_at(keys, rows)


def scores(call: AttentionCall, keys: KeyIndex, rows: slice) -> SomePairs:
    """Scores: what the kernel turns into weights, with bias and softcap."""
    return call.scores(keys, rows)


def cosines(call: AttentionCall, keys: KeyIndex, rows: slice) -> SomePairs:
    """cos(q_i, k_j) after the feature map, -1..1; a vector of zeros has cosine 0."""
    feature = call.kernel.feature
    q, k = (F.normalize(feature(t.float()), dim=-1) for t in (call.q[:, :, rows], call.k[:, :, keys]))
    return _products(call, q, k, 1.0)


def norm_products(call: AttentionCall, keys: KeyIndex, rows: slice) -> SomePairs:
    """|q_i| |k_j| * scale: the score at a cosine of 1, without bias and softcap."""
    feature = call.kernel.feature
    q, k = (feature(t.float()).norm(dim=-1, keepdim=True) for t in (call.q[:, :, rows], call.k[:, :, keys]))
    return _products(call, q, k, call.scale)


def cells(call: AttentionCall, side: int, quantity: Quantity = weights) -> Cells:
    """[largest, mean] value of each square over the pairs that may attend; NaN where none may.

    quantity: what gives the values: `weights`, `scores`, `cosines` or `norm_products`. Exact up to fp32 sums. For the
    slot, see `slot_cells`. Raises InputError unless `side` is at least 1.
    """
    n_rows, n_columns = _grid(call, side)
    squares = call.q.new_full((*call.q.shape[:2], 2, n_rows, n_columns), torch.nan, dtype=torch.float)
    for keys, rows in _blocks(call, side):
        allowed = call.allowed(keys, rows)
        values = quantity(call, keys, rows)
        count = _squares(allowed.float(), side).sum((-2, -1))
        largest = _squares(values.masked_fill(~allowed, -torch.inf), side, -torch.inf).amax((-2, -1))
        mean = _squares(values.masked_fill(~allowed, 0), side).sum((-2, -1)) / count.clamp(min=1)
        block = torch.stack((largest, mean), 2).masked_fill((count == 0)[:, :, None], torch.nan)
        top, left = rows.start // side, int(keys[0]) // side
        squares[..., top : top + block.shape[-2], left : left + block.shape[-1]] = block
    return squares


def pairs(call: AttentionCall, side: int) -> Int[Tensor, "batch row column"]:
    """How many pairs of each square may attend, in the first head; the weights of the means when squares are joined."""
    n_rows, n_columns = _grid(call, side)
    counts = torch.zeros((len(call.q), n_rows, n_columns), dtype=torch.long, device=call.q.device)
    for keys, rows in _blocks(call, side):
        count = _squares(call.allowed(keys, rows)[:, :1].long(), side)[:, 0].sum((-2, -1))
        top, left = rows.start // side, int(keys[0]) // side
        counts[:, top : top + count.shape[-2], left : left + count.shape[-1]] = count
    return counts


def slot_cells(call: AttentionCall, side: int) -> Float[Tensor, "batch head 2 row"]:
    """[largest, mean] attention to the slot over each run of `side` queries; NaN without a slot."""
    n_rows, _ = _grid(call, side)
    column = call.slot_weights()
    if column is None:
        return call.q.new_full((*call.q.shape[:2], 2, n_rows), torch.nan, dtype=torch.float)
    runs = [column[..., i : i + side] for i in range(0, column.shape[-1], side)]
    return torch.stack([torch.stack((run.amax(-1), run.mean(-1)), -1) for run in runs], -1)


def of_heads(call: AttentionCall, heads: Sequence[int]) -> AttentionCall:
    """The same call with some of its heads only, each with its own key head."""
    chosen = torch.tensor(heads, device=call.q.device)
    kv_heads = chosen // (call.q.shape[1] // call.k.shape[1])
    weights = None if call.set_pattern is None else call.set_pattern.weights
    mask, bias, weights = (t if t is None or t.shape[1] == 1 else t[:, chosen] for t in (call.mask, call.bias, weights))
    fewer = replace(
        call.with_pattern(None),
        q=call.q[:, chosen],
        k=call.k[:, kv_heads],
        v=call.v[:, kv_heads],
        mask=mask,
        bias=bias,
        slot=None if call.slot is None else call.slot.of_heads(chosen),
    )
    return fewer.with_pattern(weights)


def _products(call: AttentionCall, q: Tensor, k: Tensor, scale: float) -> Tensor:
    return AttentionCall(call.layer, q, k, k, scale).scores()


def _grid(call: AttentionCall, side: int) -> tuple[int, int]:
    if side < 1:
        raise InputError(f"side is how many tokens a cell covers, at least 1; got {side}")
    return -(-call.q.shape[2] // side), -(-call.k.shape[2] // side)


def _blocks(call: AttentionCall, side: int) -> Iterator[tuple[KeyIndex, slice]]:
    """Keys and queries of every block in which some pair may attend. A block begins where a square begins."""
    span = side * max(1, SPAN // side)
    for start in range(0, call.q.shape[2], span):
        rows = slice(start, min(start + span, call.q.shape[2]))
        for keys in call.keys.split(span):
            if call.visibility.has_pairs(keys, rows):
                yield keys, rows


def _squares(values: Tensor, side: int, fill: float = 0.0) -> Shaped[Tensor, "#batch #head row column side side"]:
    """Pairs in squares of `side` x `side`; what the last squares lack is `fill`."""
    down, right = (-length % side for length in values.shape[-2:])
    values = F.pad(values, (0, right, 0, down), value=fill)
    return rearrange(values, "b h (row i) (column j) -> b h row column i j", i=side, j=side)
