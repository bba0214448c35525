"""Takes biases of queries and keys apart: an edit that moves them at random, and a head's score in four parts.

Query i and key j make the score (q_i + b_q) R (k_j + b_k), where R turns by the distance j - i. It is the sum of
q_i R k_j, b_q R k_j, q_i R b_k and b_q R b_k. Softmax cancels each part that is equal for all keys of a query.

Without rotation q_i b_k and b_q b_k do not depend on j: softmax sees neither, so b_K does nothing. With rotation both
depend on j through the distance alone: b_q R b_k is a position bias that is the same in every text, as ALiBi's is.
The bias q_i R b_k is one that the query chooses. b_q R k_j is seen in any case: every query asks for the same keys.
The first query sees one key, so biases of queries and keys never change what the first token becomes.
"""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from sinkinterp.attention.call import AttentionCall
from sinkinterp.attention.shapes import ModelShape
from sinkinterp.attention.sites import HeadWeights
from sinkinterp.interventions import Edit

PARTS = ("q.k", "b_q.k", "q.b_k", "b_q.b_k")
Parts = Float[Tensor, "4 batch head query key"]


@dataclass(frozen=True)
class AsFarAtRandom(Edit):
    """Moves the bias of every head as far as `edit` moves it, in a random direction: its control."""

    edit: Edit
    seed: int = field(default=0, kw_only=True)

    def check(self, shape: ModelShape, length: int) -> None:
        self.edit.check(shape, length)

    @override
    def query_weights(self, layer: int, weights: HeadWeights) -> HeadWeights:
        return self._moved(layer, weights, self.edit.query_weights(layer, weights))

    @override
    def key_weights(self, layer: int, weights: HeadWeights) -> HeadWeights:
        return self._moved(layer, weights, self.edit.key_weights(layer, weights))

    @override
    def value_weights(self, layer: int, weights: HeadWeights) -> HeadWeights:
        return self._moved(layer, weights, self.edit.value_weights(layer, weights))

    def _moved(self, layer: int, weights: HeadWeights, edited: HeadWeights) -> HeadWeights:
        if edited is weights or weights.bias is None or edited.bias is None:
            return weights
        distance = (edited.bias - weights.bias).norm(dim=-1, keepdim=True)
        generator = torch.Generator().manual_seed(1000 * self.seed + layer)
        drawn = torch.randn(weights.bias.shape, generator=generator).to(weights.bias)
        return weights.with_bias(weights.bias + distance * drawn / drawn.norm(dim=-1, keepdim=True))


def four_parts(call: AttentionCall, biases: AttentionCall) -> Parts:
    """The scaled scores as q.k, b_q.k, q.b_k and b_q.b_k, in the order of `PARTS`, rotation included.

    biases: the call of the same layer for a residual of zeros, whose queries and keys are the biases alone.
    """
    group = call.q.shape[1] // call.k.shape[1]
    b_q, b_k = biases.q, biases.k.repeat_interleave(group, 1)
    q, k = call.q - b_q, call.k.repeat_interleave(group, 1) - b_k
    return torch.stack([query @ key.mT for key in (k, b_k) for query in (q, b_q)]) * call.scale


def seen(parts: Parts, call: AttentionCall) -> Float[Tensor, "4 batch head"]:
    """Returns what softmax sees of each part: its standard deviation over the keys of a query, mean over queries.

    The mean over a query's keys is invisible: softmax divides it away.
    """
    allowed = call.allowed()
    n_keys = allowed.sum(-1, keepdim=True)
    apart = (parts - (parts * allowed).sum(-1, keepdim=True) / n_keys) * allowed
    return (apart.square().sum(-1) / n_keys[..., 0]).sqrt()[..., 1:].mean(-1)
