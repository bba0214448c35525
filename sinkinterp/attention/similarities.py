"""Similarities: each turns a score into a weight before normalisation, as a value or as a log-magnitude and a sign."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F

from ..errors import InputError
from ..spec import Spec
from .shapes import Allowed, Scores

SignedLog = tuple[Scores, Scores]


@dataclass(frozen=True)
class Similarity(Spec):
    """signed: whether weights may be negative. positive: whether every weight is above zero, whatever the score.

    drops_factor: whether the values of a row are divided by some common factor, which only a normaliser of degree 1
    cancels.
    """

    signed: ClassVar[bool] = False
    positive: ClassVar[bool] = False
    drops_factor: ClassVar[bool] = False

    def __call__(self, scores: Scores, allowed: Allowed) -> Scores:
        """Weights before normalisation; 0 where a pair may not attend."""
        raise NotImplementedError

    def log_magnitude(self, scores: Scores) -> Scores:
        """log |weight| of every pair, masked or not."""
        raise NotImplementedError

    def sign(self, scores: Scores) -> Scores:
        """The sign of every pair's weight: -1, 0 or 1."""
        return scores.sign() if self.signed else scores.new_ones(()).expand_as(scores)

    def signed_log(self, scores: Scores) -> SignedLog:
        """`log_magnitude` and `sign`."""
        return self.log_magnitude(scores), self.sign(scores)


@dataclass(frozen=True)
class Exp(Similarity):
    """exp(score), each row divided by its largest entry."""

    positive: ClassVar[bool] = True
    drops_factor: ClassVar[bool] = True

    def __call__(self, scores: Scores, allowed: Allowed) -> Scores:
        scores = scores.masked_fill(~allowed, -torch.inf)
        peak = scores.amax(-1, keepdim=True).detach()
        return (scores - peak.masked_fill(peak == -torch.inf, 0)).exp()

    def log_magnitude(self, scores: Scores) -> Scores:
        return scores


@dataclass(frozen=True)
class ExpMinusOne(Similarity):
    """exp(score) - 1, each row divided by exp of its largest score, or by 1 if that is larger."""

    signed: ClassVar[bool] = True
    drops_factor: ClassVar[bool] = True

    def __call__(self, scores: Scores, allowed: Allowed) -> Scores:
        scores = scores.masked_fill(~allowed, 0)
        peak = scores.amax(-1, keepdim=True).clamp(min=0).detach()
        return (scores - peak).exp() - (-peak).exp()

    def log_magnitude(self, scores: Scores) -> Scores:
        return scores.clamp(min=0) + (-torch.expm1(-scores.abs())).log()


@dataclass(frozen=True)
class Sigmoid(Similarity):
    """1 / (1 + exp(log(length) - score)).

    If `length` is the context length, a row of scores near zero sums to about one (Ramapuram et al. 2024). `length` is
    one number for all queries, so a weight depends on its own pair only.
    """

    length: float = 1.0
    positive: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length <= 0:
            raise InputError(f"the length whose logarithm is subtracted must be above zero; got {self.length}")

    def __call__(self, scores: Scores, allowed: Allowed) -> Scores:
        return (scores - math.log(self.length)).sigmoid() * allowed

    def log_magnitude(self, scores: Scores) -> Scores:
        return F.logsigmoid(scores - math.log(self.length))


@dataclass(frozen=True)
class EluPlusOne(Similarity):
    """exp(score) below zero, score + 1 above."""

    positive: ClassVar[bool] = True

    def __call__(self, scores: Scores, allowed: Allowed) -> Scores:
        return (F.elu(scores) + 1) * allowed

    def log_magnitude(self, scores: Scores) -> Scores:
        return torch.where(scores > 0, scores.clamp(min=0).log1p(), scores)


@dataclass(frozen=True)
class Raw(Similarity):
    """The score itself, which may be negative; linear attention."""

    signed: ClassVar[bool] = True

    def __call__(self, scores: Scores, allowed: Allowed) -> Scores:
        return scores * allowed

    def log_magnitude(self, scores: Scores) -> Scores:
        return scores.abs().log()


@dataclass(frozen=True)
class _Of(Similarity):
    """A similarity made of another."""

    of: Similarity = Raw()

    @property
    def drops_factor(self) -> bool:  # type: ignore[override]
        return self.of.drops_factor


@dataclass(frozen=True)
class Magnitude(_Of):
    """|sim| of another similarity: what proxy scores are made of."""

    def __call__(self, scores: Scores, allowed: Allowed) -> Scores:
        return self.of(scores, allowed).abs()

    def log_magnitude(self, scores: Scores) -> Scores:
        return self.of.log_magnitude(scores)


@dataclass(frozen=True)
class Rectified(_Of):
    """max(sim, 0) of another similarity; ReLU attention is `Rectified(Raw())`."""

    def __call__(self, scores: Scores, allowed: Allowed) -> Scores:
        return self.of(scores, allowed).relu()

    def log_magnitude(self, scores: Scores) -> Scores:
        return self.of.log_magnitude(scores).masked_fill(self.of.sign(scores) <= 0, -torch.inf)
