"""Metrics as values: the name under which a report keeps a metric, and the function that computes it.

A family of metrics ends its file with them, in a tuple that `metrics.instruments` picks up:

    KURTOSIS = Metric("kurtosis", RESIDUAL, kurtosis)
    METRICS = (PEAK_OVER_MEDIAN, KURTOSIS)

`report.extra(KURTOSIS)` is then the answer, and `report.has(KURTOSIS)` tells whether it was measured.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
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
    """A report keeps under `name`: the answers of `read` at a site, `sequence layer ...`."""

    name: str
    site: Site
    read: Callable[[Any], Tensor]


@dataclass(frozen=True)
class LogitsMetric:
    """A metric of a model's logits and of the tokens that it was given: `sequence ...`."""

    name: str
    read: Callable[[Logits, Tokens], Tensor]


AnyMetric = Metric | LogitsMetric


POSITIONS = 16  # whose logits a CPU looks at together


def target_loss(
    logits: Float[Tensor, "sequence pos vocab"], targets: Int[Tensor, "sequence pos"]
) -> Float[Tensor, "sequence pos"]:
    """Cross-entropy of the target at every position, in nats, in fp32."""
    return torch.stack([_sequence_loss(*sequence) for sequence in zip(logits, targets.long(), strict=True)])


def _sequence_loss(logits: Float[Tensor, "pos vocab"], targets: Int[Tensor, " pos"]) -> Float[Tensor, " pos"]:
    """The losses of one sequence; on a CPU of a few positions at a time, whose log-softmax stays in its cache."""
    block = POSITIONS if logits.device.type == "cpu" else max(1, len(targets))
    parts = zip(logits.split(block), targets.split(block), strict=True)
    return torch.cat([F.cross_entropy(some.float(), goal, reduction="none") for some, goal in parts])


def next_token_loss(
    logits: Float[Tensor, "sequence pos vocab"], tokens: Int[Tensor, "sequence pos"]
) -> Float[Tensor, "sequence pos-1"]:
    """Cross-entropy of every token but the first, given the tokens before it, in nats, in fp32."""
    return target_loss(logits[:, :-1], tokens[:, 1:])


NEXT_TOKEN_LOSS = LogitsMetric("loss", next_token_loss)
METRICS = (NEXT_TOKEN_LOSS,)
