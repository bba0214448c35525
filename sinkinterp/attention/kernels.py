"""From scores to attention weights: a feature map, a scaling, a similarity and a normaliser.

Row i of the pattern is  alpha * sim(t_i s_ij) / Z_i  (Gu et al. 2025, section 7.2 and equation 8; t_i is the scaling).
Similarities and normalisers come in two forms, and a test holds them equal: values, which make a dense pattern that
trains, and log-magnitudes, which give any column of the pattern without the others.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import nn

from ..errors import InputError
from ..spec import Spec, added_later
from .features import EluFeature, Feature, Identity, MLPFeature
from .normalisers import ClampedSum, Normaliser, PNorm, PositiveShare, Unit
from .scalings import LogLength, Scaling, Unscaled
from .shapes import Allowed, Rows, Scores
from .similarities import EluPlusOne, Exp, ExpMinusOne, Magnitude, Raw, Rectified, Sigmoid, SignedLog, Similarity
from .visibility import QueryRun

__all__ = [
    "SOFTMAX",
    "ClampedSum",
    "EluFeature",
    "EluPlusOne",
    "Exp",
    "ExpMinusOne",
    "Feature",
    "Identity",
    "Kernel",
    "LogLength",
    "MLPFeature",
    "Magnitude",
    "Normaliser",
    "PNorm",
    "PositiveShare",
    "Raw",
    "Rectified",
    "Scaling",
    "Sigmoid",
    "Similarity",
    "Unit",
    "Unscaled",
]


@dataclass(frozen=True)
class Kernel(Spec):
    """How scores become weights: softmax by default, and every field replaces one step.

    In a model's attention call, `feature` is the module that the layer built from it.
    """

    feature: Feature | nn.Module = Identity()
    similarity: Similarity = Exp()
    normaliser: Normaliser = PNorm()
    alpha: float = 1.0
    scaling: Scaling = added_later(Unscaled(), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.similarity.drops_factor and self.normaliser.degree != 1:
            raise InputError(
                f"{type(self.similarity).__name__} drops a factor per row, which only a normaliser of degree 1 "
                "restores: use PNorm()"
            )

    @property
    def is_softmax(self) -> bool:
        return self == Kernel()

    @property
    def is_normalised(self) -> bool:
        """Rows are non-negative and sum to one (slots counted)."""
        return self.alpha == 1 and self.normaliser == PNorm() and self.similarity.positive

    @property
    def proxy(self) -> "Kernel":
        """The kernel whose weights are |w| / sum |w|: proxy scores (section 7.2)."""
        return replace(self, similarity=self.normaliser.weighs(self.similarity), normaliser=PNorm(), alpha=1.0)

    def pattern(self, scores: Scores, allowed: Allowed, queries: QueryRun) -> Scores:
        """Attention weights of a run of queries, given their scores with all columns."""
        sim = self.similarity(self.scaling(scores, queries), allowed)
        return self.alpha * self.normaliser(sim, queries)

    def signed_log(self, scores: Scores, queries: QueryRun) -> SignedLog:
        """Log-magnitudes and signs of the similarities of a run of queries with any columns."""
        return self.similarity.signed_log(self.scaling(scores, queries))

    def log_normaliser(self, blocks: Iterable[SignedLog], queries: QueryRun) -> Rows:
        """log Z of every query, given `signed_log` of all columns in blocks; -inf where all similarities are 0."""
        return self.normaliser.log_size(blocks, queries)

    def weights_over_alpha(self, scores: Scores, log_z: Rows, queries: QueryRun) -> Scores:
        """Attention weights of a run of queries with any columns, masked or not, but for the factor alpha.

        It may overwrite `scores`.
        """
        scores = self.scaling(scores, queries)
        log_z = log_z.masked_fill(log_z == -torch.inf, 0)  # such a row has no weight, and keeps none
        weights = self.similarity.log_magnitude(scores).sub_(log_z[..., None]).exp_()
        return weights * self.normaliser.keep(self.similarity.sign(scores)) if self.similarity.signed else weights


SOFTMAX = Kernel()
