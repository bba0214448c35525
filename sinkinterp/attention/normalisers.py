"""Normalisers: what a row of similarities is divided by, from its values or, block by block, from their logarithms."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import InputError
from ..spec import Spec
from .flash import log_total
from .shapes import Rows, Scores
from .similarities import Magnitude, Rectified, SignedLog, Similarity
from .visibility import QueryRun


@dataclass(frozen=True)
class Normaliser(Spec):
    """degree: 1 where Z is proportional to its row, so that a common factor of the row cancels; 0 otherwise.

    Both forms are given the queries of the rows, whose positions and numbers of visible keys Z may depend on.
    """

    degree: ClassVar[int] = 0

    def __call__(self, sim: Scores, queries: QueryRun) -> Scores:
        """Similarities divided by Z."""
        raise NotImplementedError

    def log_size(self, blocks: Iterable[SignedLog], queries: QueryRun) -> Rows:
        """log Z from blocks of columns, each given as its similarities' log-magnitudes and signs."""
        raise NotImplementedError

    def keep(self, sign: Scores) -> Scores:
        """The signs of the weights, given those of the similarities."""
        return sign

    def weighs(self, similarity: Similarity) -> Similarity:
        """The non-negative similarity to which the magnitudes of a row's weights are proportional."""
        return Magnitude(similarity) if similarity.signed else similarity


@dataclass(frozen=True)
class Unit(Normaliser):
    """No normalisation: Z = 1."""

    def __call__(self, sim: Scores, queries: QueryRun) -> Scores:
        return sim

    def log_size(self, blocks: Iterable[SignedLog], queries: QueryRun) -> Rows:
        log_sim, _ = next(iter(blocks))
        return torch.zeros_like(log_sim[..., 0])


@dataclass(frozen=True)
class PNorm(Normaliser):
    """Z = (sum of |sim|^p)^(1/p); with p = 1, rows of magnitudes sum to one (equation 43).

    Values below 1e-38 of the largest in their row count as zero, since x^p has no finite slope at 0 if p < 1.
    """

    p: float = 1.0
    degree: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.p <= 0:
            raise InputError(f"p must be above zero; got p = {self.p}")

    def __call__(self, sim: Scores, queries: QueryRun) -> Scores:
        tiny = torch.finfo(sim.dtype).tiny
        if self.p == 1:
            return sim / sim.abs().sum(-1, keepdim=True).clamp(min=tiny)
        largest = sim.abs().amax(-1, keepdim=True).clamp(min=tiny)
        sim = sim / largest.detach()  # Z is of degree 1, so this factor and its gradient cancel
        size = sim.abs()
        powers = torch.where(size > tiny, size.clamp(min=tiny).pow(self.p), 0)
        return sim / powers.sum(-1, keepdim=True).clamp(min=1).pow(1 / self.p)  # below 1 only where a row is zero

    def log_size(self, blocks: Iterable[SignedLog], queries: QueryRun) -> Rows:
        return log_total(self.p * log_sim for log_sim, _ in blocks) / self.p


@dataclass(frozen=True)
class ClampedSum(Normaliser):
    """Z = max(|sum of sim|, 1): for similarities that may be negative (section 7.2)."""

    def __call__(self, sim: Scores, queries: QueryRun) -> Scores:
        return sim / sim.sum(-1, keepdim=True).abs().clamp(min=1)

    def log_size(self, blocks: Iterable[SignedLog], queries: QueryRun) -> Rows:
        plus, minus = reduce(torch.logaddexp, (_by_sign(*block) for block in blocks))
        peak = torch.maximum(plus, minus)
        peak = peak.masked_fill(peak == -torch.inf, 0)
        return (((plus - peak).exp() - (minus - peak).exp()).abs().log() + peak).clamp(min=0)


def _by_sign(log_sim: Scores, sign: Scores) -> Float[Tensor, "2 batch head query"]:
    """Log-sums of the positive and of the negative similarities of each row."""
    positive = log_sim.masked_fill(sign < 0, -torch.inf)
    negative = log_sim.masked_fill(sign > 0, -torch.inf)
    return torch.stack((positive.logsumexp(-1), negative.logsumexp(-1)))


@dataclass(frozen=True)
class PositiveShare(Normaliser):
    """max(sim, 0) / sum of |sim|: with `ExpMinusOne()`, softpick (Zuhri et al. 2025)."""

    degree: ClassVar[int] = 1

    def __call__(self, sim: Scores, queries: QueryRun) -> Scores:
        return sim.relu() / sim.abs().sum(-1, keepdim=True).clamp(min=torch.finfo(sim.dtype).tiny)

    def log_size(self, blocks: Iterable[SignedLog], queries: QueryRun) -> Rows:
        return log_total(log_sim for log_sim, _ in blocks)

    def keep(self, sign: Scores) -> Scores:
        return sign.clamp(min=0)

    def weighs(self, similarity: Similarity) -> Similarity:
        return Rectified(similarity) if similarity.signed else similarity
