"""Changed training data (Gu et al. 2025, section 5): sequences with changed tokens, or few different sequences."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Int
from torch import Tensor

from ..errors import InputError
from ..spec import Spec
from .backcopy import BigramBackcopy
from .draws import HELD_OUT, generator
from .tokens import Tokens


@dataclass(frozen=True)
class Sample:
    """Sequences over `vocab` symbols, the numbers of their chunks, and the stream that they were drawn for."""

    tokens: Tokens
    chunks: Int[Tensor, "sequence"]
    vocab: int
    stream: tuple[object, ...]


@dataclass(frozen=True)
class TokenChange(Spec):
    """Puts other tokens into sequences, both for training and held out. Positions are counted from 0."""

    def __call__(self, sample: Sample) -> Tokens:
        """The changed sequences."""
        raise NotImplementedError

    def check(self, vocab: int, length: int) -> None:
        """Raises InputError unless the change fits sequences of `length` tokens over `vocab` symbols."""
        raise NotImplementedError


@dataclass(frozen=True)
class RandomAt(TokenChange):
    """Uniform tokens at the positions from `start` to `stop` - 1.

    `redraw` draws them for each sample, as the paper says. Without it, each chunk has its own tokens, which never
    change, as in the paper's released code.
    """

    start: int = 0
    stop: int = 1
    redraw: bool = True

    def __call__(self, sample: Sample) -> Tokens:
        tokens, width = sample.tokens.clone(), self.stop - self.start
        if self.redraw:
            rng = generator("random at", self.key(), *sample.stream)
            drawn = torch.randint(sample.vocab, (len(tokens), width), generator=rng)
        else:
            streams = (generator("random at", self.key(), chunk) for chunk in sample.chunks.tolist())
            drawn = torch.stack([torch.randint(sample.vocab, (width,), generator=rng) for rng in streams])
        tokens[:, self.start : self.stop] = drawn
        return tokens

    def check(self, vocab: int, length: int) -> None:
        if not 0 <= self.start < self.stop <= length:
            raise InputError(
                f"random tokens are at positions from 0 to {length}, the length; got {self.start} to {self.stop}"
            )


@dataclass(frozen=True)
class FixedAt(TokenChange):
    """The same token at one position of every sequence. Positions 0, 1 and 2 are the paper's first to third."""

    position: int
    token: int

    def __call__(self, sample: Sample) -> Tokens:
        tokens = sample.tokens.clone()
        tokens[:, self.position] = self.token
        return tokens

    def check(self, vocab: int, length: int) -> None:
        if not (0 <= self.position < length and 0 <= self.token < vocab):
            raise InputError(
                f"a fixed token is below {vocab} at a position below {length}; got {self.token} at {self.position}"
            )


class _OfTask:
    """The sizes of a task that is made from `task`."""

    task: BigramBackcopy

    @property
    def vocab(self) -> int:
        """How many symbols the model must have."""
        return self.task.vocab

    @property
    def length(self) -> int:
        """Tokens per sequence."""
        return self.task.length


@dataclass(frozen=True)
class Edited(_OfTask, Spec):
    """A task whose sequences, both for training and held out, are changed by `edits`."""

    task: BigramBackcopy = BigramBackcopy()
    edits: tuple[TokenChange, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for change in self.edits:
            change.check(self.vocab, self.length)

    @property
    def title(self) -> str:
        return f"{self.task.title} with changed tokens"

    def sample(self, n: int, *stream: object) -> Tokens:
        """`n` sequences, the same for the same stream."""
        tokens = self.task.sample(n, *stream)
        for change in self.edits:
            tokens = change(Sample(tokens, torch.arange(n), self.vocab, stream))
        return tokens


@dataclass(frozen=True)
class Limited(_OfTask, Spec):
    """A task of which training sees only `sequences` different sequences, again and again."""

    sequences: int
    task: BigramBackcopy = BigramBackcopy()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sequences < 1:
            raise InputError(f"training needs at least 1 sequence; got {self.sequences}")

    @property
    def title(self) -> str:
        return f"{self.task.title}, {self.sequences} sequences"

    def sample(self, n: int, *stream: object) -> Tokens:
        """`n` of the sequences, the same for the same stream. Held-out sequences are those of the task."""
        if stream == HELD_OUT:
            return self.task.sample(n, *stream)
        return _pool(self)[torch.randint(self.sequences, (n,), generator=generator("limited", *stream))]


@lru_cache(maxsize=2)
def _pool(limited: Limited) -> Tokens:
    """The sequences that training sees."""
    return limited.task.sample(limited.sequences, "limited")
