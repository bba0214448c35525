"""Attention with its whole pattern in memory: it trains under any kernel. For small T."""

import torch

from .scoring import Scoring
from .shapes import HeadOutput, Pattern, Values
from .slots import Slot, SlotRow


def pattern(scoring: Scoring) -> Pattern:
    """Attention weights of all queries; the slot's column comes first where there is a slot."""
    scores, allowed, slot = scoring.scores(), scoring.visibility.allowed(), scoring.slot_scores()
    if slot is not None:
        scores = torch.cat((slot, scores), -1)
        allowed = torch.nn.functional.pad(allowed, (1, 0), value=True)
    return scoring.kernel.pattern(scores, allowed, scoring.queries())


def mix(weights: Pattern, v: Values, slot: Slot) -> HeadOutput:
    """Values averaged by a pattern. A column before the first token's is the slot's."""
    tokens = weights[..., -v.shape[2] :].unflatten(1, (v.shape[1], -1))
    z = torch.einsum("bkgij,bkjd->bkgid", tokens.to(v.dtype), v).flatten(1, 2)
    if isinstance(slot, SlotRow):
        z = z + torch.einsum("bhij,hjd->bhid", weights[..., :1].to(z.dtype), slot.value.to(z.dtype))
    return z
