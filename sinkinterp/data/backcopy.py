"""A synthetic task, Bigram-Backcopy (Guo et al. 2024, arXiv 2410.13835)."""

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..checks import whole_number
from ..spec import Limits, Spec, added_later
from .draws import generator
from .tokens import Tokens

BURN_IN = 32  # tokens of the chain after which its first token no longer matters


class First(Spec):
    """The rule for the first token of a sequence.

    `lead` tokens are dropped at the beginning of the chain. `marks` symbols occur at the first position only.
    """

    lead: ClassVar[int] = 0
    marks: ClassVar[int] = 0

    def sequences(self, chain: Tokens, vocab: int) -> Int[Tensor, "sequence full_pos"]:
        """Full sequences over `vocab` symbols, made from tokens of the chain."""
        return chain


class RandomFirst(First):
    """Any symbol, drawn uniformly, so that only its position can mark it (Gu et al. 2025, section 5)."""


class ChainFirst(First):
    """A token like any other: sequences are cut out of the middle of the chain."""

    lead: ClassVar[int] = BURN_IN


class BosFirst(First):
    """The last symbol, which occurs at no other position.

    The tokens after it are cut out of the middle of a chain over the other symbols.
    """

    lead: ClassVar[int] = BURN_IN
    marks: ClassVar[int] = 1

    def sequences(self, chain: Tokens, vocab: int) -> Int[Tensor, "sequence full_pos"]:
        return torch.nn.functional.pad(chain, (1, 0), value=vocab - 1)


class BigramBackcopy(Spec):
    """A bigram chain over `vocab` symbols in which the token after a trigger repeats the token before the trigger.

    `first` says how sequences begin. If they are cut out of the middle of the chain, the token that the first
    trigger repeats may be before the cut. Symbols are numbered by their Zipf rank, and the first `n_triggers` of
    them are the triggers.
    """

    title: ClassVar[str] = "Bigram-Backcopy"

    limits: ClassVar[Limits] = {"length": 2, "rank": 1}

    vocab: int = 64
    length: int = 16
    n_triggers: int = 3
    spread: float = 1.5
    rank: int = 4
    chain_seed: int = 1
    first: First = added_later(RandomFirst())

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number(self.vocab, "vocab", self.first.marks + 2)
        whole_number(self.n_triggers, "n_triggers", 0, self.symbols)

    @property
    def symbols(self) -> int:
        """How many symbols the chain has."""
        return self.vocab - self.first.marks

    def transitions(self) -> Float[Tensor, "symbol next_symbol"]:
        """The chance of each next symbol. A row is softmax(log Zipf + spread * N), with N Gaussian and of low rank.

        The low rank makes classes of symbols that behave alike, as letters do.
        """
        rng = generator("backcopy chain", self.chain_seed)
        left, right = (torch.randn((self.symbols, self.rank), generator=rng, dtype=torch.float64) for _ in range(2))
        noise = left @ right.T / self.rank**0.5
        return (self.spread * noise - torch.arange(1.0, self.symbols + 1).log()).softmax(-1)

    def sample(self, n: int, *stream: object) -> Tokens:
        """`n` sequences, the same for the same stream."""
        length = self.first.lead + self.length - self.first.marks
        chain = self._chain(n, length, generator("backcopy", *stream))[:, self.first.lead :]
        return self.first.sequences(chain, self.vocab)

    def _chain(self, n: int, length: int, rng: torch.Generator) -> Int[Tensor, "{n} {length}"]:
        cumulative = self.transitions().cumsum(-1)
        tokens = torch.randint(self.symbols, (n, length), generator=rng)
        chance = torch.rand((n, length), generator=rng, dtype=torch.float64)
        for i in range(1, length):
            chained = (cumulative[tokens[:, i - 1]] < chance[:, i, None]).sum(-1).clamp(max=self.symbols - 1)
            copied = tokens[:, max(i - 2, 0)]
            tokens[:, i] = torch.where((tokens[:, i - 1] < self.n_triggers) & (i >= 2), copied, chained)
        return tokens
