"""Which tokens of a sequence are predicted."""

from dataclasses import dataclass

from ..data.tokens import Tokens
from ..errors import InputError
from ..spec import Spec

IGNORED = -100  # the label of tokens that transformers' losses leave out


@dataclass(frozen=True)
class Objective(Spec):
    """Predicts every token from position `first` on, each from the tokens before it."""

    @property
    def first(self) -> int:
        """Position, from 0, of the first token that is predicted."""
        raise NotImplementedError

    def labels(self, tokens: Tokens) -> Tokens:
        """The tokens to predict, and -100 in place of tokens that are not predicted."""
        if self.first <= 1:  # losses leave out position 0, which nothing comes before
            return tokens
        labels = tokens.clone()
        labels[:, : self.first] = IGNORED
        return labels


@dataclass(frozen=True)
class NextToken(Objective):
    """Predicts every token but the first."""

    @property
    def first(self) -> int:
        return 1


@dataclass(frozen=True)
class PrefixLM(Objective):
    """Predicts the tokens after the first `prefix`, which a prefix mask shows to all (Gu et al. 2025, Fig. 5)."""

    prefix: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prefix < 1:
            raise InputError(f"a prefix is at least 1 token long; got {self.prefix}")

    @property
    def first(self) -> int:
        return self.prefix
