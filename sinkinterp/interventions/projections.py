"""Interventions on projection biases, b_Q, b_K and b_V, and on what keys read of the residual stream.

These are not the paper's key biases k*, which are slots. Without rotary positions b_K adds the same number to
all scores of a query, and softmax cancels it: zeroing b_K is then a null control. With rotary positions it has effects.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..attention.sites import HeadWeights
from ..errors import InputError
from .selectors import InLayers, OnHeads, OnKVHeads, OnPairs


def _zeroed(edit: OnPairs, layer: int, weights: HeadWeights) -> HeadWeights:
    """The weights with no bias in the heads that the edit changes."""
    if not edit.acts_in(layer):
        return weights
    if weights.bias is None:
        raise InputError(f"layer {layer} has no such bias to zero; take a model with biases (GPT-2, OPT, Qwen2)")
    heads = edit.head_mask(layer, len(weights.bias)).to(weights.bias.device)
    return weights.with_bias(weights.bias.masked_fill(heads[:, None], 0))


class ZeroQueryBias(OnHeads):
    """b_Q = 0. Behind a layer norm, b_Q is the part of a query that does not depend on the token."""

    def query_weights(self, layer: int, weights: HeadWeights) -> HeadWeights:
        return _zeroed(self, layer, weights)


class ZeroKeyBias(OnKVHeads):
    """b_K = 0: a null control without rotary positions, since it then leaves the pattern unchanged."""

    def key_weights(self, layer: int, weights: HeadWeights) -> HeadWeights:
        return _zeroed(self, layer, weights)


class ZeroValueBias(OnKVHeads):
    """b_V = 0, which shifts what every head returns by the same vector."""

    def value_weights(self, layer: int, weights: HeadWeights) -> HeadWeights:
        return _zeroed(self, layer, weights)


@dataclass(frozen=True)
class BlindKeys(InLayers):
    """Keys no longer read dimensions `dims` of the normed residual: those columns of W_K are zero."""

    dims: Iterable[int]

    def key_weights(self, layer: int, weights: HeadWeights) -> HeadWeights:
        if not self.acts_in(layer):
            return weights
        weight = weights.weight.clone()
        weight[..., list(self.dims)] = 0
        return replace(weights, weight=weight)
