"""Bigram-Backcopy (Guo et al. 2024, arXiv 2410.13835): a task with work for attention at some positions only."""

import hashlib
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..spec import Spec, later

LEAD = 32  # tokens of the chain after which where it began no longer shows
Tokens = Int[Tensor, "sequence pos"]
Flags = Bool[Tensor, "sequence pos"]


def generator(*stream: object) -> torch.Generator:
    """A random generator that depends on the names and numbers of its stream, and on nothing else."""
    digest = hashlib.sha256("/".join(map(str, stream)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


@dataclass(frozen=True)
class First(Spec):
    """What the first token of a sequence is. `lead`: tokens of the chain before it. `marks`: symbols it alone has."""

    lead: ClassVar[int] = 0
    marks: ClassVar[int] = 0

    def begun(self, chain: Tokens, vocab: int) -> Int[Tensor, "sequence begun_pos"]:
        """Whole sequences of `vocab` symbols, from tokens of the chain."""
        return chain


@dataclass(frozen=True)
class RandomFirst(First):
    """Uniform over all symbols, so that only its position can mark it (Gu et al. 2025, section 5)."""


@dataclass(frozen=True)
class ChainFirst(First):
    """A token like any other: sequences are cut out of the middle of the chain."""

    lead: ClassVar[int] = LEAD


@dataclass(frozen=True)
class BosFirst(First):
    """The last symbol, which stands nowhere else; the chain, cut out of its middle, has the symbols before it."""

    lead: ClassVar[int] = LEAD
    marks: ClassVar[int] = 1

    def begun(self, chain: Tokens, vocab: int) -> Int[Tensor, "sequence begun_pos"]:
        return torch.nn.functional.pad(chain, (1, 0), value=vocab - 1)


@dataclass(frozen=True)
class BigramBackcopy(Spec):
    """A bigram chain over `vocab` symbols; the token after a trigger repeats the token before the trigger.

    `first` says what sequences begin with; where they are cut out of the chain's middle, what their first trigger
    repeats may not be in sight. Symbols are numbered by their Zipf rank and the triggers are the first `n_triggers`.
    """

    title: ClassVar[str] = "Bigram-Backcopy"

    vocab: int = 64
    length: int = 16
    n_triggers: int = 3
    spread: float = 1.5
    rank: int = 4
    chain_seed: int = 1
    first: First = later(RandomFirst())

    @property
    def symbols(self) -> int:
        """How many symbols the chain has."""
        return self.vocab - self.first.marks

    def transitions(self) -> Float[Tensor, "symbol next_symbol"]:
        """Rows are softmax(log Zipf + spread * N), N Gaussian of low rank: like letters, symbols fall into classes."""
        rng = generator("backcopy chain", self.chain_seed)
        left, right = (torch.randn((self.symbols, self.rank), generator=rng, dtype=torch.float64) for _ in range(2))
        noise = left @ right.T / self.rank**0.5
        return (self.spread * noise - torch.arange(1.0, self.symbols + 1).log()).softmax(-1)

    def sample(self, n: int, *stream: object) -> Tokens:
        """`n` sequences, the same for the same stream."""
        length = self.first.lead + self.length - self.first.marks
        tokens = self._chain(n, length, generator("backcopy", *stream))[:, self.first.lead :]
        return self.first.begun(tokens, self.vocab)

    def _chain(self, n: int, length: int, rng: torch.Generator) -> Int[Tensor, "{n} {length}"]:
        cumulative = self.transitions().cumsum(-1)
        tokens = torch.randint(self.symbols, (n, length), generator=rng)
        chance = torch.rand((n, length), generator=rng, dtype=torch.float64)
        for i in range(1, length):
            chained = (cumulative[tokens[:, i - 1]] < chance[:, i, None]).sum(-1).clamp(max=self.symbols - 1)
            copied = tokens[:, max(i - 2, 0)]
            tokens[:, i] = torch.where((tokens[:, i - 1] < self.n_triggers) & (i >= 2), copied, chained)
        return tokens
