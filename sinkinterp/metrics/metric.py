"""Metrics as values, and one of them, the loss. A family of metrics ends its file with a tuple `METRICS`:

    KURTOSIS = Metric("kurtosis", RESIDUAL, kurtosis)
    METRICS = (PEAK_OVER_MEDIAN, KURTOSIS)

`metrics.instruments` picks it up. `report.extra(KURTOSIS)` is then the answer, and `report.has(KURTOSIS)` tells whether
it was measured.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ..attention import Site
from ..data.tokens import Tokens

Logits = Float[Tensor, "sequence pos vocab"]
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


def target_loss(
    logits: Float[Tensor, "sequence pos vocab"], targets: Int[Tensor, "sequence pos"]
) -> Float[Tensor, "sequence pos"]:
    """Cross-entropy of the target at every position, in nats, in fp32."""
    sequences = zip(logits, targets.long(), strict=True)  # one at a time: their logits in fp32 are large
    return torch.stack([F.cross_entropy(some.float(), goal, reduction="none") for some, goal in sequences])


def next_token_loss(
    logits: Float[Tensor, "sequence pos vocab"], tokens: Int[Tensor, "sequence pos"]
) -> Float[Tensor, "sequence pos-1"]:
    """Cross-entropy of every token but the first, given the tokens before it, in nats, in fp32."""
    return target_loss(logits[:, :-1], tokens[:, 1:])


NEXT_TOKEN_LOSS = LogitsMetric("loss", next_token_loss)
METRICS = (NEXT_TOKEN_LOSS,)
