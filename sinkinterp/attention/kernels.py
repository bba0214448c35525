"""From scores to attention weights: a feature map, a similarity and a normaliser.

Row i of the pattern is  alpha * sim_ij / Z_i  (Gu et al. 2025, section 7.2 and equation 8).
A similarity and a normaliser each come in two forms that a test holds equal: on values, for a dense pattern that
trains, and on log-magnitudes, from which any column of the pattern is found without the others.
"""

from dataclasses import dataclass, replace

from torch import nn

from ..spec import Spec
from .features import EluFeature, Feature, Identity, MLPFeature
from .normalisers import ClampedSum, Normaliser, PNorm, PositiveShare, Unit
from .similarities import Allowed, EluPlusOne, Exp, ExpMinusOne, Magnitude, Raw, Rectified, Scores, Sigmoid, Similarity

__all__ = [
    "SOFTMAX", "ClampedSum", "EluFeature", "EluPlusOne", "Exp", "ExpMinusOne", "Feature", "Identity", "Kernel",
    "MLPFeature", "Magnitude", "Normaliser", "PNorm", "PositiveShare", "Raw", "Rectified", "Sigmoid", "Similarity",
    "Unit",
]  # fmt: skip


@dataclass(frozen=True)
class Kernel(Spec):
    """How scores become weights; softmax by default, and every field swaps one step.

    In a model's attention call, `feature` is what the layer built of it.
    """

    feature: Feature | nn.Module = Identity()
    similarity: Similarity = Exp()
    normaliser: Normaliser = PNorm()
    alpha: float = 1.0

    def __post_init__(self) -> None:
        if self.similarity.drops_factor and self.normaliser.degree != 1:
            raise ValueError(
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

    def pattern(self, scores: Scores, allowed: Allowed) -> Scores:
        """Dense attention weights."""
        return self.alpha * self.normaliser(self.similarity(scores, allowed))


SOFTMAX = Kernel()
