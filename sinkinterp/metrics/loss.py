"""How well a model predicts the next token."""

import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from .metric import LogitsMetric


def target_loss(
    logits: Float[Tensor, "sequence pos vocab"], targets: Int[Tensor, "sequence pos"]
) -> Float[Tensor, "sequence pos"]:
    """Cross-entropy of the target at every position, in nats, in fp32."""
    flat = F.cross_entropy(
        rearrange(logits.float(), "s p v -> (s p) v"), rearrange(targets.long(), "s p -> (s p)"), reduction="none"
    )
    return rearrange(flat, "(s p) -> s p", s=len(targets))


def next_token_loss(
    logits: Float[Tensor, "sequence pos vocab"], tokens: Int[Tensor, "sequence pos"]
) -> Float[Tensor, "sequence pos-1"]:
    """Cross-entropy of every token but the first, given the tokens before it, in nats, in fp32."""
    return target_loss(logits[:, :-1], tokens[:, 1:])


NEXT_TOKEN_LOSS = LogitsMetric("loss", next_token_loss)
METRICS = (NEXT_TOKEN_LOSS,)
