"""Metrics as values: the name under which a report keeps a metric, and the function that computes it.

A family of metrics ends its file with them, in a tuple that `metrics.instruments` picks up:

    KURTOSIS = ResidualMetric("kurtosis", kurtosis)
    METRICS = (PEAK_OVER_MEDIAN, KURTOSIS)

`report.extra(KURTOSIS)` is then the answer, and `report.has(KURTOSIS)` tells whether it was measured.
"""

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from ..attention.call import AttentionCall
from ..attention.shapes import HeadOutput, Residual
from ..data.tokens import Tokens

Logits = Float[Tensor, "sequence pos vocab"]
Importance = Float[Tensor, "batch head pos"]  # of one attention layer
Alpha = Float[Tensor, "batch layer head pos"]  # importance in all attention layers
PerHead = Float[Tensor, "batch layer head"]
PerSequence = Float[Tensor, " batch"]


@dataclass(frozen=True)
class Metric:
    """Something that a report keeps under `name`. The first axis of an answer is the sequence."""

    name: str


@dataclass(frozen=True)
class CallMetric(Metric):
    """A metric of every attention call: `sequence ...` of a call, `sequence layer ...` in a report."""

    read: Callable[[AttentionCall], Tensor]


@dataclass(frozen=True)
class OutputMetric(Metric):
    """A metric of what the heads of every attention call return: `sequence ...`, `sequence layer ...` in a report."""

    read: Callable[[HeadOutput], Tensor]


@dataclass(frozen=True)
class ResidualMetric(Metric):
    """A metric of the residual stream before every block and after the last: `sequence block ...` in a report."""

    read: Callable[[Residual], Tensor]


@dataclass(frozen=True)
class LogitsMetric(Metric):
    """A metric of a model's logits and of the tokens that it was given: `sequence ...`."""

    read: Callable[[Logits, Tokens], Tensor]
