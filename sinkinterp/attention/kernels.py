"""From scores to attention weights: feature maps, similarities and normalisers.

Row i of the pattern is  alpha * sim_ij / Z_i  (Gu et al. 2025, section 7.2 and equation 8).
A similarity and a normaliser each come in two forms that a test holds equal: on values, for a dense pattern that
trains, and on log-magnitudes, from which any column of the pattern is found without the others.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from ..spec import Spec

Scores = Float[Tensor, "batch head query key"]
Allowed = Bool[Tensor, "#batch #head query key"]
Vectors = Float[Tensor, "batch some_head pos d_head"]
Rows = Float[Tensor, "batch head query"]


@dataclass(frozen=True)
class Feature(Spec):
    """A map applied to queries and keys alike, after any rotation."""

    def __call__(self, x: Vectors) -> Vectors:
        raise NotImplementedError


@dataclass(frozen=True)
class Identity(Feature):
    """Queries and keys as they are."""

    def __call__(self, x: Vectors) -> Vectors:
        return x


@dataclass(frozen=True)
class Similarity(Spec):
    """One score to one un-normalised weight."""

    signed: ClassVar[bool] = False

    def __call__(self, scores: Scores, allowed: Allowed) -> Scores:
        """Weights before normalisation; 0 where a pair may not attend."""
        raise NotImplementedError

    def log_magnitude(self, scores: Scores) -> Scores:
        """log |weight|, of every pair."""
        raise NotImplementedError


@dataclass(frozen=True)
class Exp(Similarity):
    """exp(score), each row divided by its largest entry; only a normaliser of degree 1 can undo that."""

    def __call__(self, scores: Scores, allowed: Allowed) -> Scores:
        scores = scores.masked_fill(~allowed, -torch.inf)
        peak = scores.amax(-1, keepdim=True).detach()
        return (scores - peak.masked_fill(peak == -torch.inf, 0)).exp()

    def log_magnitude(self, scores: Scores) -> Scores:
        return scores


@dataclass(frozen=True)
class Sigmoid(Similarity):
    """1 / (1 + exp(-score))."""

    def __call__(self, scores: Scores, allowed: Allowed) -> Scores:
        return scores.sigmoid() * allowed

    def log_magnitude(self, scores: Scores) -> Scores:
        return F.logsigmoid(scores)


@dataclass(frozen=True)
class Raw(Similarity):
    """The score itself, which may be negative: linear attention."""

    signed: ClassVar[bool] = True

    def __call__(self, scores: Scores, allowed: Allowed) -> Scores:
        return scores * allowed

    def log_magnitude(self, scores: Scores) -> Scores:
        return scores.abs().log()


@dataclass(frozen=True)
class Magnitude(Similarity):
    """|sim| of another similarity, from which proxy scores are made."""

    of: Similarity = Raw()

    def __call__(self, scores: Scores, allowed: Allowed) -> Scores:
        return self.of(scores, allowed).abs()

    def log_magnitude(self, scores: Scores) -> Scores:
        return self.of.log_magnitude(scores)


@dataclass(frozen=True)
class Normaliser(Spec):
    """What a row of similarities is divided by. `degree` 1 cancels any factor common to the row."""

    degree: ClassVar[int] = 0

    def __call__(self, sim: Scores) -> Scores:
        """Similarities over Z."""
        raise NotImplementedError

    def log_size(self, log_total: Rows) -> Rows:
        """log Z from the row's log-sum of magnitudes."""
        raise NotImplementedError


@dataclass(frozen=True)
class Unit(Normaliser):
    """No normalisation: Z = 1."""

    def __call__(self, sim: Scores) -> Scores:
        return sim

    def log_size(self, log_total: Rows) -> Rows:
        return torch.zeros_like(log_total)


@dataclass(frozen=True)
class PNorm(Normaliser):
    """Z = (sum of |sim|^p)^(1/p); p = 1, the only one so far, makes rows of magnitudes sum to one."""

    p: float = 1.0
    degree: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.p != 1:
            raise ValueError(f"PNorm knows p = 1 only; got p = {self.p}")

    def __call__(self, sim: Scores) -> Scores:
        total = sim.abs().sum(-1, keepdim=True)
        return sim / total.clamp(min=torch.finfo(sim.dtype).tiny)

    def log_size(self, log_total: Rows) -> Rows:
        return log_total


@dataclass(frozen=True)
class Kernel(Spec):
    """How scores become weights; softmax by default, and every field swaps one step."""

    feature: Feature = Identity()
    similarity: Similarity = Exp()
    normaliser: Normaliser = PNorm()
    alpha: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.similarity, Exp) and self.normaliser.degree != 1:
            raise ValueError("Exp drops a factor per row, which only a normaliser of degree 1 restores: use PNorm()")

    @property
    def is_softmax(self) -> bool:
        return self == Kernel()

    @property
    def is_normalised(self) -> bool:
        """Rows are non-negative and sum to one (slots counted)."""
        return self.alpha == 1 and isinstance(self.normaliser, PNorm) and not self.similarity.signed

    def pattern(self, scores: Scores, allowed: Allowed) -> Scores:
        """Dense attention weights."""
        return self.alpha * self.normaliser(self.similarity(scores, allowed))


SOFTMAX = Kernel()
