"""Clean and corrupted prompts of random tokens, and the two answers that their logits are asked about."""

import torch

import sinkinterp as si

N, T, RIGHT, WRONG = 3, 7, 11, 13
_GENERATOR = torch.Generator().manual_seed(5)
CLEAN, CORRUPTED = (torch.randint(89, (N, T), generator=_GENERATOR) for _ in range(2))


def difference(logits):
    return logits[:, -1, RIGHT] - logits[:, -1, WRONG]


def mapped(model, clean=CLEAN, corrupted=CORRUPTED, **how):
    """The map of what the places restore of the difference, or of another metric."""
    return si.activation_patching(model, clean, corrupted, **{"metric": difference, "progress": False} | how)
