"""Metrics as values: the name under which a report keeps a metric, and the function that computes it.

A family of metrics ends its file with them, in a tuple that `metrics.instruments` picks up:

    KURTOSIS = Metric("kurtosis", RESIDUAL, kurtosis)
    METRICS = (PEAK_OVER_MEDIAN, KURTOSIS)

`report.extra(KURTOSIS)` is then the answer, and `report.has(KURTOSIS)` tells whether it was measured.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from ..attention.sites import Site
from ..data.tokens import Tokens

Logits = Float[Tensor, "sequence pos vocab"]
Importance = Float[Tensor, "batch head pos"]  # of one attention layer
Alpha = Float[Tensor, "batch layer head pos"]  # importance in all attention layers
PerHead = Float[Tensor, "batch layer head"]
PerSequence = Float[Tensor, " batch"]


@dataclass(frozen=True)
class Metric:
    """What a report keeps under `name`: the answers of `read` at a site, `sequence layer ...`."""

    name: str
    site: Site
    read: Callable[[Any], Tensor]


@dataclass(frozen=True)
class LogitsMetric:
    """A metric of a model's logits and of the tokens that it was given: `sequence ...`."""

    name: str
    read: Callable[[Logits, Tokens], Tensor]


AnyMetric = Metric | LogitsMetric
