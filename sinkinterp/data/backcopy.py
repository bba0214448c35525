"""Bigram-Backcopy (Guo et al. 2024, arXiv 2410.13835): a task with work for attention at some positions only."""

import hashlib
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..spec import Spec

Tokens = Int[Tensor, "sequence pos"]
Flags = Bool[Tensor, "sequence pos"]


def generator(*stream: object) -> torch.Generator:
    """A random generator that depends on the names and numbers of its stream, and on nothing else."""
    digest = hashlib.sha256("/".join(map(str, stream)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


@dataclass(frozen=True)
class BigramBackcopy(Spec):
    """A bigram chain over `vocab` symbols; the token after a trigger repeats the token before the trigger.

    The first token is uniform over all symbols, so that only its position can mark it (Gu et al. 2025, section 5).
    Symbols are numbered by their Zipf rank and the triggers are the first `n_triggers`.
    """

    title: ClassVar[str] = "Bigram-Backcopy"

    vocab: int = 64
    length: int = 16
    n_triggers: int = 3
    spread: float = 1.5
    rank: int = 4
    chain_seed: int = 1

    def transitions(self) -> Float[Tensor, "symbol next_symbol"]:
        """Rows are softmax(log Zipf + spread * N), N Gaussian of low rank: like letters, symbols fall into classes."""
        rng = generator("backcopy chain", self.chain_seed)
        left, right = (torch.randn((self.vocab, self.rank), generator=rng, dtype=torch.float64) for _ in range(2))
        noise = left @ right.T / self.rank**0.5
        return (self.spread * noise - torch.arange(1.0, self.vocab + 1).log()).softmax(-1)

    def sample(self, n: int, *stream: object) -> Tokens:
        """`n` sequences, the same for the same stream."""
        rng, cumulative = generator("backcopy", *stream), self.transitions().cumsum(-1)
        tokens = torch.randint(self.vocab, (n, self.length), generator=rng)
        chance = torch.rand((n, self.length), generator=rng, dtype=torch.float64)
        for i in range(1, self.length):
            chained = (cumulative[tokens[:, i - 1]] < chance[:, i, None]).sum(-1).clamp(max=self.vocab - 1)
            copied = tokens[:, max(i - 2, 0)]
            tokens[:, i] = torch.where((tokens[:, i - 1] < self.n_triggers) & (i >= 2), copied, chained)
        return tokens
