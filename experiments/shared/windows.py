"""Measures the targets of queries with and without windows: the first token, BOS, delimiters, neighbours."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinkinterp.attention.call import AttentionCall

FIRST, WINDOWS_FIRST, BOS, DELIMITERS, NEAR, LARGEST = (
    "first token", "first key in sight", "BOS", "delimiters", "itself and 3 before", "largest weight",
)  # fmt: skip
KINDS = (FIRST, WINDOWS_FIRST, BOS, DELIMITERS, NEAR, LARGEST)
NEIGHBOURS = 4  # the query itself and those before it
PerKind = Float[Tensor, "batch query kind"]


def shares(
    call: AttentionCall, is_bos: Bool[Tensor, " key"], is_delimiter: Bool[Tensor, " key"]
) -> Float[Tensor, "batch query 2 kind"]:
    """Returns what each query gives to every kind of key, mean over heads, then what uniform attention would give.

    Delimiters are those beside the first token and BOS. The largest weight is that of the query's strongest key.
    """
    allowed = call.allowed().expand(len(call.q), 1, -1, -1).to(call.q.dtype)
    uniform = allowed / allowed.sum(-1, keepdim=True)
    pattern = call.pattern()[..., -call.k.shape[2] :]
    return torch.stack([_kinds(weights, allowed, is_bos, is_delimiter) for weights in (pattern, uniform)], 2)


def _kinds(weights: Tensor, allowed: Tensor, is_bos: Tensor, is_delimiter: Tensor) -> PerKind:
    n = weights.shape[-1]
    others = is_delimiter & ~is_bos & (torch.arange(n) > 0)
    is_near = torch.ones(n, n).tril().triu(1 - NEIGHBOURS)
    first_in_sight = allowed.argmax(-1, keepdim=True).expand(*weights.shape[:3], 1)
    kinds = (
        weights[..., 0],
        weights.gather(-1, first_in_sight)[..., 0],
        (weights * is_bos).sum(-1),
        (weights * others).sum(-1),
        (weights * is_near).sum(-1),
        weights.amax(-1),
    )
    return torch.stack(kinds, -1).mean(1)


def sees_first(call: AttentionCall) -> Float[Tensor, "batch query"]:
    """Whether each query sees the first key: 1 or 0."""
    return call.allowed(call.keys[:1]).expand(len(call.q), 1, -1, -1)[:, 0, :, 0].float()


def delimiters_of(tokens: Int[Tensor, " pos"], word: Callable[[int], str]) -> Bool[Tensor, " pos"]:
    """Which tokens hold neither a letter nor a digit."""
    return torch.tensor([not any(letter.isalnum() for letter in word(int(token))) for token in tokens])
