"""A head's score with the first key as a sum over pairs of parts of the residual; norms frozen, rotation included."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention.call import AttentionCall
from ..attention.shapes import Keys, PerQuery, Residual
from ..attention.slots import SlotRow
from ..backends.frozen import FrozenRun
from ..errors import InputError
from ..interventions.changes import ChangeMLP, ChangeOutputs, ChangePositionEmbedding, ChangeTokenEmbedding
from ..interventions.edit import Edit
from ..interventions.operations import MeanOfOthers

AS_OTHERS, FIRST = MeanOfOthers(1), (0,)  # what a part becomes where it is cut, and where that is
OWN_BIAS, SLOT = "own bias", "k*"
OtherMeans = Float[Tensor, "batch kv_head query d_head"]


@dataclass(frozen=True)
class Part:
    """A part of a residual. cut: the edit that makes it, at the first token, its mean over others; None for biases."""

    name: str
    cut: Edit | None


Pairs = Float[Tensor, "batch head part part_of_key"]
FirstKeys = Float[Tensor, "batch part_of_residual kv_head d_head"]


def parts_by_block(run: FrozenRun) -> Iterator[tuple[int, list[Part], list[Residual]]]:
    """For every block, the parts of its input and what they are; they sum to it.

    What a block adds beside its heads and its feed-forward layer (output biases, cross-attention) is its "bias".
    """
    x, mlps = run.trace.residuals["x"], run.trace.mlps["mlp"]
    parts = [Part("embedding", ChangeTokenEmbedding(AS_OTHERS, positions=FIRST))]
    values = [x[:, 0]]
    if run.position is not None:
        parts.append(Part("position", ChangePositionEmbedding(AS_OTHERS, positions=FIRST)))
        values = [x[:, 0] - run.position, run.position.expand_as(x[:, 0])]
    for block in range(run.subject.shape.n_layers):
        yield block, list(parts), list(values)
        rest = x[:, block + 1] - x[:, block] - mlps[:, block]
        if block in run.calls:
            heads = run.writes(block)
            parts += [
                Part(f"head {block}.{h}", ChangeOutputs(AS_OTHERS, heads=[(block, h)], positions=FIRST))
                for h in range(len(heads))
            ]
            values += list(heads)
            rest = rest - heads.sum(0)
        parts += [
            Part(f"bias {block}", None),
            Part(f"MLP {block}", ChangeMLP(AS_OTHERS, layers=[block], positions=FIRST)),
        ]
        values += [rest, mlps[:, block]]


def head_pairs(
    run: FrozenRun, layer: int, heads: Sequence[int], values: Sequence[Residual], on_slot: bool
) -> tuple[Pairs, FirstKeys]:
    """The mean score over queries that every part of the query makes with every part of the key.

    Beside the parts of the residual stands the bias of queries and keys, and behind it k* where the slot is explained.
    The second answer is every part of the first key, less its mean over the other keys.
    """
    call = run.calls[layer]
    zeros = torch.zeros_like(values[0])
    own = run.call(layer, zeros)
    q_bias, k_bias = own.q, own.k
    kv_heads = [head * call.k.shape[1] // call.q.shape[1] for head in heads]
    qs, ks, firsts = [], [], []
    for value in values:
        of_part = run.call(layer, value)
        k = of_part.k - k_bias
        qs.append((of_part.q - q_bias)[:, heads])
        ks.append(above_others(call, k, on_slot)[:, kv_heads])
        firsts.append(k[:, :, 0] - k[:, :, 1:].mean(2))
    qs.append(q_bias[:, heads])
    ks.append(above_others(call, k_bias, on_slot)[:, kv_heads])
    if on_slot and isinstance(call.slot, SlotRow):
        qs.append(torch.zeros_like(qs[0]))
        ks.append(call.slot.key[heads].to(qs[0]).expand_as(qs[0]))
    q = torch.stack(qs, 2) * (weights_of_queries(call, on_slot) * call.scale)[:, :, None, :, None]
    return torch.einsum("bhcid,bhkid->bhck", q, torch.stack(ks, 2)), torch.stack(firsts, 1)


def score(call: AttentionCall, above: OtherMeans, on_slot: bool) -> Float[Tensor, "batch head"]:
    """Mean over queries of their product with a difference of keys, scaled."""
    by_head = above.repeat_interleave(call.q.shape[1] // above.shape[1], 1)
    weights = weights_of_queries(call, on_slot)
    return (torch.linalg.vecdot(call.q, by_head) * weights).sum(-1) * call.scale


def slot_keys(call: AttentionCall) -> Float[Tensor, "1 head 1 d_head"]:
    """k* of every head. Raises InputError for a layer without one."""
    if not isinstance(call.slot, SlotRow):
        raise InputError(f"layer {call.layer} has no learned key k* to explain; choose another head")
    return call.slot.key[None]


def above_others(call: AttentionCall, k: Keys, on_slot: bool) -> OtherMeans:
    """For every query, the first key (nothing, where the slot is explained) less the mean of the others it sees."""
    allowed = call.allowed()[:, :1].to(k.dtype)
    if not on_slot:
        allowed = allowed.clone()
        allowed[..., 0] = 0
    means = (allowed / allowed.sum(-1, keepdim=True).clamp(min=1)) @ k
    return (0 if on_slot else k[:, :, :1]) - means


def weights_of_queries(call: AttentionCall, on_slot: bool) -> PerQuery:
    """The same for all queries that see the first key and another, and 0 for the rest; they sum to one."""
    allowed = call.allowed()[:, :1]
    counted = allowed[..., 0] & (allowed.sum(-1) > 1) if not on_slot else allowed.any(-1)
    return counted.to(call.q.dtype) / counted.sum(-1, keepdim=True)
