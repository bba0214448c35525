"""Induction: heads that look at the token after an earlier copy of their own (Olsson et al. 2022, arXiv 2209.11895)."""

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention import CALL, AttentionCall
from ..backends.subject import Subject
from ..data.tokens import random_tokens
from ..metrics.importance import pattern
from .measure import answers_of


def induction_scores(
    subject: Subject, sequences: int = 8, length: int = 64, seed: int = 0
) -> Float[Tensor, "sequence layer head"]:
    """The attention of each token of a second copy to the token after its first one, mean over the copy.

    The text is length // 2 random tokens, read twice. `uniform_induction` is the null.
    """
    half = random_tokens(subject.shape.vocab, length // 2, sequences, seed).tokens
    (scores,) = answers_of(subject, torch.cat((half, half), 1), {"induction": CALL.read(induction)}, ())
    return scores


def induction(call: AttentionCall) -> Float[Tensor, "batch head"]:
    """The score of every head in a text that is two copies of one."""
    weights = pattern(call)[..., -call.k.shape[2] :]
    half = weights.shape[-1] // 2
    return weights.diagonal(1 - half, -2, -1)[..., 1:].float().mean(-1)


def uniform_induction(length: int) -> float:
    """The score of uniform attention over all tokens so far."""
    half = length // 2
    return sum(1 / (query + 1) for query in range(half, 2 * half)) / half
