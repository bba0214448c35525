"""Changes to the sequences of a corpus on their way to the model (Gu et al. 2025, section 5)."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from ..errors import InputError
from ..spec import Spec
from .seeding import generator
from .tokens import Tokens


@dataclass(frozen=True)
class Sample:
    """Sequences over `vocab` symbols, the numbers of their chunks, and the stream that they were drawn for."""

    tokens: Tokens
    chunks: Int[Tensor, "sequence"]
    vocab: int
    stream: tuple[object, ...]


@dataclass(frozen=True)
class StreamEdit(Spec):
    """A change to sequences, the same for training and for held-out ones. Positions are counted from 0."""

    def __call__(self, sample: Sample) -> Tokens:
        """The changed sequences."""
        raise NotImplementedError

    def check(self, vocab: int, length: int) -> None:
        """Raises InputError where the edit does not fit sequences of `length` tokens over `vocab` symbols."""
        raise NotImplementedError


@dataclass(frozen=True)
class RandomAt(StreamEdit):
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
                f"random tokens stand at positions from 0 to {length}, the length; got {self.start} to {self.stop}"
            )


@dataclass(frozen=True)
class FixedAt(StreamEdit):
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
