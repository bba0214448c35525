"""Intervals over sequences."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import Tensor

RESAMPLES = 2000


@dataclass(frozen=True)
class Estimate:
    """A mean over sequences and its 95% percentile-bootstrap interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3g} [{self.low:.3g}, {self.high:.3g}]"


def estimate(per_sequence: Float[Tensor, " sequence"], seed: int = 0) -> Estimate:
    """Mean over sequences with the 2.5% and 97.5% quantiles of the means of 2,000 resamples."""
    values = per_sequence.double().cpu().numpy()
    picks = np.random.default_rng(seed).integers(len(values), size=(RESAMPLES, len(values)))
    low, high = np.quantile(values[picks].mean(1), (0.025, 0.975))
    return Estimate(float(values.mean()), float(low), float(high))
