"""Interventions on how attention layers compute: another kernel or temperature, clipped weights, other projections."""

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

from ..attention import AttentionCall, Exp, HeadWeights, Kernel, PNorm, Similarity, Unit
from ..checks import InputError, choice
from ..spec import ABOVE_ZERO, Limits
from .selectors import InCalls, InLayers, OnHeads, OnKVHeads, OnPairs


class PatchNormalization(InCalls, OnHeads):
    """Any kernel of `attention.kernels` in place of a model's own, per layer and head.

    A similarity stands for its kernel without normalisation, as in `PatchNormalization(Sigmoid())`. Two drop a factor
    per row and so are normalised: `Exp()` stands for softmax, `ExpMinusOne()` is divided by the sum of its magnitudes.
    A similarity may be given by its name, as in `PatchNormalization("sigmoid")`.
    """

    kernel: Kernel | Similarity

    def __post_init__(self) -> None:
        if isinstance(self.kernel, str):
            object.__setattr__(self, "kernel", _named(self.kernel))
        super().__post_init__()

    def changed(self, call: AttentionCall) -> AttentionCall:
        return self.rescored(call, kernel=self._kernel)

    @property
    def _kernel(self) -> Kernel:
        if isinstance(self.kernel, Kernel):
            return self.kernel
        return Kernel(similarity=self.kernel, normaliser=PNorm() if self.kernel.drops_factor else Unit())


def _named(name: str) -> Similarity:
    kinds = {kind.__name__.lower(): kind for kind in Similarity.__subclasses__() if not kind.__name__.startswith("_")}
    words = kinds | {"softmax": Exp}
    return choice(name.lower(), words, "similarity")()


class Temperature(InCalls, OnHeads):
    """Scores divided by `temperature` before they are normalised; above 1, attention is flatter.

    A softcap caps what was divided; position biases and sink logits are not divided.
    """

    temperature: float
    limits: ClassVar[Limits] = {"temperature": ABOVE_ZERO}

    def changed(self, call: AttentionCall) -> AttentionCall:
        return self.rescored(call, scale=call.scale / self.temperature)


class ClipPattern(InCalls, OnHeads):
    """Clipped softmax: weights become min(max((high - low) A + low, 0), 1), on pairs that may attend. For small T.

    Bondarenko et al. 2023, arXiv:2306.12929; low below 0 lets heads give exactly nothing. The slot's column is kept.
    """

    low: float = -0.03
    high: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.low < self.high:
            raise InputError(f"weights are stretched from low to a higher number; got {self.low} and {self.high}")

    def changed(self, call: AttentionCall) -> AttentionCall:
        pattern = call.pattern()
        clipped = ((self.high - self.low) * pattern + self.low).clamp(0, 1) * (pattern > 0)
        first = pattern.shape[-1] - call.k.shape[2]
        clipped[..., :first] = pattern[..., :first]
        return self.on_heads(call, call.with_pattern(clipped))


# Projections: the biases b_Q, b_K and b_V, and what keys read of the residual stream

# These are not the paper's key biases k*, which are slots. Without rotary positions b_K adds the same number to all
# scores of a query, and softmax cancels it: zeroing b_K is then a null control. With rotary positions it has effects.


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


class BlindKeys(InLayers):
    """Keys no longer read dimensions `dims` of the normed residual: those columns of W_K are zero."""

    dims: Iterable[int]

    def key_weights(self, layer: int, weights: HeadWeights) -> HeadWeights:
        if not self.acts_in(layer):
            return weights
        weight = weights.weight.clone()
        weight[..., list(self.dims)] = 0
        return replace(weights, weight=weight)
