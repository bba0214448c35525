"""Which tokens of a sequence are predicted."""

from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor

from ..spec import Spec

IGNORED = -100  # the label that transformers' losses pass over
Tokens = Int[Tensor, "sequence pos"]


@dataclass(frozen=True)
class Objective(Spec):
    """Every token from position `first` on, each from the tokens before it."""

    @property
    def first(self) -> int:
        """Position, from 0, of the first token that is predicted."""
        raise NotImplementedError

    def labels(self, tokens: Tokens) -> Tokens:
        """The tokens to predict; -100 where there is nothing to."""
        if self.first <= 1:  # position 0 has no past, and losses shift it away
            return tokens
        labels = tokens.clone()
        labels[:, : self.first] = IGNORED
        return labels


@dataclass(frozen=True)
class NextToken(Objective):
    """Every token but the first."""

    @property
    def first(self) -> int:
        return 1


@dataclass(frozen=True)
class PrefixLM(Objective):
    """The tokens after a prefix of `prefix` tokens, which a prefix mask shows whole (Gu et al. 2025, Fig. 5)."""

    prefix: int = 5

    def __post_init__(self) -> None:
        if self.prefix < 1:
            raise ValueError(f"a prefix is at least 1 token long; got {self.prefix}")

    @property
    def first(self) -> int:
        return self.prefix
