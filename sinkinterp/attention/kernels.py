"""From scores to attention weights: a feature map, a similarity and a normaliser make a kernel.

Row i of the pattern is  alpha * sim(s_ij) / Z_i  (Gu et al. 2025, section 7.2 and equation 8).
The feature map phi is applied to queries and keys alike, after any rotation and before their product s_ij.

Kernels are given whole rows: a run of queries with all the columns that they may see.
"""

import math
from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..checks import InputError
from ..spec import ABOVE_ZERO, Dims, Limits, Part, Spec, added_later
from .shapes import Allowed, Scores

Vectors = Float[Tensor, "batch some_head pos d_head"]


class Feature(Part):
    """A map of queries and keys. `build` returns a module for each layer if it has parameters."""

    def __call__(self, x: Vectors) -> Vectors:
        raise NotImplementedError(f"{type(self).__name__} has parameters, which .build(dims) makes")


class Identity(Feature):
    """Queries and keys as they are."""

    def __call__(self, x: Vectors) -> Vectors:
        return x


class EluFeature(Feature):
    """elu(x) + 1, which is positive."""

    def __call__(self, x: Vectors) -> Vectors:
        return F.elu(x) + 1


class MLPFeature(Feature):
    """Two square linear maps without biases and a ReLU between them, the same for queries and keys."""

    def build(self, dims: Dims) -> nn.Module:
        return _MLP(dims.d_head)


class _MLP(nn.Module):
    def __init__(self, d_head: int) -> None:
        super().__init__()
        self.up, self.down = (nn.Linear(d_head, d_head, bias=False) for _ in range(2))

    def forward(self, x: Vectors) -> Vectors:
        """The mapped vectors, in the precision of `x`; attention calls pass fp32."""
        return F.linear(F.linear(x, self.up.weight.to(x.dtype)).relu(), self.down.weight.to(x.dtype))


class Similarity(Spec):
    """Turns a score into a weight before normalisation.

    signed: whether weights may be negative. positive: whether every weight is above zero, for any score.
    drops_factor: whether the values of a row are divided by some common factor, which only a normaliser of degree 1
    cancels.
    """

    signed: ClassVar[bool] = False
    positive: ClassVar[bool] = False
    drops_factor: ClassVar[bool] = False

    def __call__(self, scores: Scores, allowed: Allowed) -> Scores:
        """Weights before normalisation; 0 where a pair may not attend."""
        raise NotImplementedError


class Exp(Similarity):
    """exp(score), each row divided by its largest entry."""

    positive: ClassVar[bool] = True
    drops_factor: ClassVar[bool] = True

    def __call__(self, scores: Scores, allowed: Allowed) -> Scores:
        scores = scores.masked_fill(~allowed, -torch.inf)
        peak = scores.amax(-1, keepdim=True).detach()
        return (scores - peak.masked_fill(peak == -torch.inf, 0)).exp()


class ExpMinusOne(Similarity):
    """exp(score) - 1, each row divided by exp of its largest score, or by 1 if that is larger."""

    signed: ClassVar[bool] = True
    drops_factor: ClassVar[bool] = True

    def __call__(self, scores: Scores, allowed: Allowed) -> Scores:
        scores = scores.masked_fill(~allowed, 0)
        peak = scores.amax(-1, keepdim=True).clamp(min=0).detach()
        return (scores - peak).exp() - (-peak).exp()


class Sigmoid(Similarity):
    """1 / (1 + exp(log(length) - score)).

    If `length` is the context length, a row of scores near zero sums to about one (Ramapuram et al. 2024). `length` is
    one number for all queries, so a weight depends on its own pair only.
    """

    length: float = 1.0
    positive: ClassVar[bool] = True
    limits: ClassVar[Limits] = {"length": ABOVE_ZERO}

    def __call__(self, scores: Scores, allowed: Allowed) -> Scores:
        return (scores - math.log(self.length)).sigmoid() * allowed


class EluPlusOne(Similarity):
    """exp(score) below zero, score + 1 above."""

    positive: ClassVar[bool] = True

    def __call__(self, scores: Scores, allowed: Allowed) -> Scores:
        return (F.elu(scores) + 1) * allowed


class Raw(Similarity):
    """The score itself, which may be negative; linear attention."""

    signed: ClassVar[bool] = True

    def __call__(self, scores: Scores, allowed: Allowed) -> Scores:
        return scores * allowed


class _Of(Similarity):
    """A similarity made of another."""

    of: Similarity = Raw()

    @property
    def drops_factor(self) -> bool:  # type: ignore[override]
        return self.of.drops_factor


class Magnitude(_Of):
    """|sim| of another similarity: what proxy scores are made of."""

    def __call__(self, scores: Scores, allowed: Allowed) -> Scores:
        return self.of(scores, allowed).abs()


class Rectified(_Of):
    """max(sim, 0) of another similarity; ReLU attention is `Rectified(Raw())`."""

    def __call__(self, scores: Scores, allowed: Allowed) -> Scores:
        return self.of(scores, allowed).relu()


class Normaliser(Spec):
    """Divides a row of similarities by Z.

    degree: 1 where Z is proportional to its row, so that a common factor of the row cancels; 0 otherwise.
    """

    degree: ClassVar[int] = 0

    def __call__(self, sim: Scores) -> Scores:
        """Similarities divided by Z."""
        raise NotImplementedError

    def weighs(self, similarity: Similarity) -> Similarity:
        """The non-negative similarity to which the magnitudes of a row's weights are proportional."""
        return Magnitude(similarity) if similarity.signed else similarity


class Unit(Normaliser):
    """No normalisation: Z = 1."""

    def __call__(self, sim: Scores) -> Scores:
        return sim


class PNorm(Normaliser):
    """Z = (sum of |sim|^p)^(1/p); with p = 1, rows of magnitudes sum to one (equation 43).

    Values below 1e-38 of the largest in their row count as zero, since x^p has no finite slope at 0 if p < 1.
    """

    p: float = 1.0
    degree: ClassVar[int] = 1
    limits: ClassVar[Limits] = {"p": ABOVE_ZERO}

    def __call__(self, sim: Scores) -> Scores:
        tiny = torch.finfo(sim.dtype).tiny
        if self.p == 1:
            return sim / sim.abs().sum(-1, keepdim=True).clamp(min=tiny)
        largest = sim.abs().amax(-1, keepdim=True).clamp(min=tiny)
        sim = sim / largest.detach()  # Z is of degree 1, so this factor and its gradient cancel
        size = sim.abs()
        powers = torch.where(size > tiny, size.clamp(min=tiny).pow(self.p), 0)
        return sim / powers.sum(-1, keepdim=True).clamp(min=1).pow(1 / self.p)  # below 1 only where a row is zero


class ClampedSum(Normaliser):
    """Z = max(|sum of sim|, 1): for similarities that may be negative (section 7.2)."""

    def __call__(self, sim: Scores) -> Scores:
        return sim / sim.sum(-1, keepdim=True).abs().clamp(min=1)


class PositiveShare(Normaliser):
    """max(sim, 0) / sum of |sim|: with `ExpMinusOne()`, softpick (Zuhri et al. 2025)."""

    degree: ClassVar[int] = 1

    def __call__(self, sim: Scores) -> Scores:
        return sim.relu() / sim.abs().sum(-1, keepdim=True).clamp(min=torch.finfo(sim.dtype).tiny)

    def weighs(self, similarity: Similarity) -> Similarity:
        return Rectified(similarity) if similarity.signed else similarity


class Clip(Spec):
    """Normalised weights as they are."""

    def __call__(self, weights: Scores) -> Scores:
        return weights


class Stretched(Clip):
    """min(max((high - low) w + low, 0), 1): clipped softmax (Bondarenko et al. 2023, arXiv:2306.12929).

    With low below 0, heads give exactly nothing to small weights, and rows no longer sum to one.
    """

    low: float = -0.03
    high: float = 1.0
    limits: ClassVar[Limits] = {"low": {"most": 0}, "high": ABOVE_ZERO}

    def __call__(self, weights: Scores) -> Scores:
        return ((self.high - self.low) * weights + self.low).clamp(0, 1)


class Kernel(Spec):
    """How scores become weights: softmax by default, and every field replaces one step.

    In a model's attention call, `feature` is the module that the layer built from it.
    """

    feature: Feature | nn.Module = Identity()
    similarity: Similarity = Exp()
    normaliser: Normaliser = PNorm()
    alpha: float = 1.0
    clip: Clip = added_later(Clip(), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.similarity.drops_factor and self.normaliser.degree != 1:
            raise InputError(f"{type(self.similarity).__name__} drops a factor per row, which PNorm() restores; use it")

    @property
    def is_softmax(self) -> bool:
        return self == Kernel()

    @property
    def is_normalised(self) -> bool:
        """If the weights of a query are non-negative and sum to one, slots counted."""
        return self.alpha == 1 and self.normaliser == PNorm() and self.similarity.positive and not self.clips

    @property
    def clips(self) -> bool:
        """If weights are changed after they are normalised, each by itself."""
        return self.clip != Clip()

    @property
    def proxy(self) -> "Kernel":
        """The kernel whose weights are |w| / sum |w|: proxy scores (section 7.2), of a kernel that does not clip."""
        return replace(self, similarity=self.normaliser.weighs(self.similarity), normaliser=PNorm(), alpha=1.0)

    def pattern(self, scores: Scores, allowed: Allowed) -> Scores:
        """Attention weights of a run of queries, given their scores with all columns."""
        return self.alpha * self.clip(self.normaliser(self.similarity(scores, allowed)))


SOFTMAX = Kernel()
