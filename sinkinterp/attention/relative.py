"""Biases that depend on the distance between query and key alone, and softmax attention with them, also for training.

Long causal calls make no T x T map, forward or backward: memory is linear in T.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..checks import Frozen
from .fused import LONG, Inputs, as_sum, is_grouped, is_plainly_causal, sdpa
from .shapes import HeadOutput, PerQuery
from .slots import SlotRow

Distance = Int[Tensor, "#batch query key"]  # from the key forward to the query; negative for later keys
Bias = Float[Tensor, "#batch #head query key"]
BLOCK = 64  # queries of a part of the band


class Slopes(Frozen, eq=False):
    """-slope * distance, with a slope per head (ALiBi)."""

    slopes: Float[Tensor, " head"]
    reach = 0

    def pairs(self, distance: Distance) -> Bias:
        """The bias at every distance."""
        far = distance.abs().float()  # a prefix mask also shows later keys
        return -self.slopes.to(far.device)[:, None, None] * far[:, None]

    def output(self, call: Inputs) -> HeadOutput:
        """The output of causal attention. Queries and keys get more numbers, whose products sum to the bias.

        Its part for the key and that for the query are large. They stand first and side by side, so that they cancel
        before other numbers are added: the sum is as precise as a bias that is added to scores. Queries are scaled
        before, since the kernel's backward pass scales them first, which would round the large numbers.
        """
        slopes, n = self.slopes.to(call.q.device), call.q.shape[2]
        ramp = slopes.double()[:, None] * torch.arange(n, device=slopes.device)
        parts = as_sum(ramp, call.q.dtype)
        ones = torch.ones_like(parts)
        q, k = _before(call.q * call.scale, ones, -parts), _before(call.k, parts, ones)
        v = F.pad(call.v, (0, q.shape[-1] - call.q.shape[-1]))
        return sdpa(replace(call, q=q, k=k, v=v, scale=1.0))[..., : call.v.shape[-1]]


def _before(vectors: Tensor, *columns: Float[Tensor, "head pos part"]) -> Tensor:
    """Queries or keys behind more numbers, those of each part side by side."""
    more = torch.stack(columns, -1).flatten(-2)
    return torch.cat((more.expand(len(vectors), -1, -1, -1), vectors), -1)


class Scalars(Frozen, eq=False):
    """A scalar per distance and head. Greater distances get the last one, and later keys the first (T5)."""

    scalars: Float[Tensor, "#head reach"]

    @property
    def reach(self) -> int:
        """How many distances have a scalar."""
        return self.scalars.shape[1]

    def pairs(self, distance: Distance) -> Bias:
        """The bias at every distance."""
        pairs = F.embedding(distance.clamp(0, self.reach - 1), self.scalars.mT.to(distance.device))
        return pairs.movedim(-1, 1).float()

    def output(self, call: Inputs) -> HeadOutput:
        """The output of causal attention, in two parts.

        Softmax does not see a constant, so without the last scalar the bias is 0 but for near keys. They are a band,
        which `_Band` computes. The kernel computes the others, with one key more. That key has the band's log-sum-exp
        as its score, and as its weight the band's share.
        """
        near, n_heads, width = self.reach - 1, call.q.shape[1], call.v.shape[-1]
        band, log_sum = _Band.apply(call.q, call.k, call.v, self._band(call), call.scale)
        parts = as_sum(log_sum[:, :, near:] / call.scale, call.q.dtype)
        q = torch.cat((call.q[:, :, near:], parts), -1)
        k, v = (F.pad(t[:, :, :-near], (0, parts.shape[-1])) for t in (call.k, call.v))
        key = F.pad(torch.ones_like(parts[0, :, :1]), (call.q.shape[-1], 0))
        value = F.pad(key.new_ones(n_heads, 1, 1), (width, parts.shape[-1] - 1))
        z = sdpa(replace(call, q=q, k=k, v=v, slot=SlotRow(key, value)))
        far = z[..., :width] + z[..., width : width + 1] * band[:, :, near:]
        return torch.cat((band[:, :, :near], far), 2).to(call.v.dtype)

    def _band(self, call: Inputs) -> Float[Tensor, "head row column"]:
        """The bias of `BLOCK` queries, whose last key is that of the last query; -inf where a key is no near one."""
        scalars = self.scalars.to(call.q.device, torch.promote_types(call.q.dtype, torch.float))
        bias, near = (scalars[:, :-1] - scalars[:, -1:]).expand(call.q.shape[1], -1), self.reach - 1
        column = torch.arange(BLOCK + near - 1, device=bias.device)
        distance = near - 1 + column[:BLOCK, None] - column
        in_band = (distance >= 0) & (distance < near)
        return torch.where(in_band, bias[:, distance.clamp(0, near - 1)], -torch.inf)


class RelativeBias(Frozen, eq=False):
    """The bias of some queries and keys at their positions."""

    rule: Slopes | Scalars
    queries: Int[Tensor, "#batch query"]
    keys: Int[Tensor, "#batch key"]

    @property
    def dense(self) -> Bias:
        """The bias of all pairs, computed anew."""
        return self.rule.pairs(self.queries[:, :, None] - self.keys[:, None, :])

    def output(self, call: Inputs) -> HeadOutput | None:
        """The output of a call, given without its bias; None unless it is causal softmax attention that is long.

        None also for slots, soft caps, grouped queries, and float16, whose range is too small for `Slopes`.
        """
        is_plain = call.kernel.is_softmax and call.slot is call.softcap is None and not is_grouped(call)
        if not (is_plain and is_plainly_causal(call) and call.q.dtype != torch.half and self.is_long):
            return None
        with torch.autocast(call.q.device.type, enabled=False):
            return self.rule.output(call)

    @cached_property
    def is_long(self) -> bool:
        """Tells if a causal call of these positions is worth the rule: it has many keys, whose positions count on."""
        many = self.keys.shape[1] > max(LONG, 4 * self.rule.reach)
        return many and self.queries.equal(self.keys) and bool((self.queries.diff() == 1).all())


def as_tensor(bias: RelativeBias | Tensor | None) -> Tensor | None:
    """The bias of all pairs."""
    return bias.dense if isinstance(bias, RelativeBias) else bias


class _Band(torch.autograd.Function):
    """Output and log-sum-exp of attention to near keys, in fp32, with gradients of both."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> tuple[HeadOutput, PerQuery]:
        z, log_sum = v.new_empty(v.shape, dtype=bias.dtype), q.new_empty(q.shape[:3], dtype=bias.dtype)
        for rows, keys, part in _parts(q.shape[2], bias):
            scores = _scores(q[:, :, rows], k[:, :, keys], part, scale)
            largest = scores.amax(-1, keepdim=True)
            weights = scores.sub_(largest).exp_()
            total = weights.sum(-1, keepdim=True)
            z[:, :, rows] = (weights @ v[:, :, keys].to(z.dtype)).div_(total)
            log_sum[:, :, rows] = (largest + total.log()).squeeze(-1)
        ctx.save_for_backward(q, k, v, bias, z, log_sum)
        ctx.scale = scale
        return z, log_sum

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_z: Tensor, d_log_sum: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias, z, log_sum = ctx.saved_tensors
        less = (d_z * z).sum(-1, keepdim=True) - d_log_sum[..., None]
        d_q, d_k, d_v, d_bias = (torch.zeros_like(t, dtype=bias.dtype) for t in (q, k, v, bias))
        for rows, keys, part in _parts(q.shape[2], bias):
            some = (q[:, :, rows], k[:, :, keys], v[:, :, keys], d_z[:, :, rows])
            some_q, some_k, some_v, g = (t.to(bias.dtype) for t in some)
            weights = _scores(some_q, some_k, part, ctx.scale).sub_(log_sum[:, :, rows, None]).exp_()
            d_v[:, :, keys] += weights.mT @ g
            d_scores = (g @ some_v.mT).sub_(less[:, :, rows]).mul_(weights)
            _part_of(d_bias, rows, keys).add_(d_scores.sum(0))
            d_scores *= ctx.scale
            d_q[:, :, rows] = d_scores @ some_k
            d_k[:, :, keys] += d_scores.mT @ some_q
        return d_q.to(q.dtype), d_k.to(k.dtype), d_v.to(v.dtype), d_bias, None


def _parts(n: int, bias: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
    """Queries of every part, the keys that are near to them, and their bias."""
    past = bias.shape[2] - BLOCK
    for first in range(0, n, BLOCK):
        rows = slice(first, min(first + BLOCK, n))
        keys = slice(max(0, first - past), rows.stop)
        yield rows, keys, _part_of(bias, rows, keys)


def _part_of(bias: Tensor, rows: slice, keys: slice) -> Tensor:
    """The bias of some queries and keys, a view."""
    left = bias.shape[2] - BLOCK - (rows.start - keys.start)
    return bias[:, : rows.stop - rows.start, left : left + keys.stop - keys.start]


def _scores(q: Tensor, k: Tensor, bias: Tensor, scale: float) -> Tensor:
    batch, n_heads, n, d = q.shape
    q, k = (t.to(bias.dtype).reshape(batch * n_heads, -1, d) for t in (q, k))
    added = bias.expand(batch, -1, -1, -1).flatten(0, 1)
    return torch.baddbmm(added, q, k.mT, alpha=scale).view(batch, n_heads, n, -1)
