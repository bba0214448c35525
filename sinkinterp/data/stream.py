"""What of a corpus is drawn when, and how it is changed on the way (Gu et al. 2025, section 5)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch
from jaxtyping import Int
from torch import Tensor

from ..errors import InputError
from ..spec import Spec
from .backcopy import generator

Tokens = Int[Tensor, "sequence pos"]

HELD_OUT = "held out"
STRETCH, STRETCHES = 64, 32  # held-out neighbours at least, where there are as many; stretches of them at most
Trim = Callable[[range], range]


@dataclass(frozen=True)
class Split:
    """The chunks to train on and those held out, both in an order of their own that never changes.

    The chunks of a smaller share are the first ones of a larger share, and none depends on the other.
    """

    training: Int[Tensor, "trained"]
    held_out: Int[Tensor, "kept_back"]

    @staticmethod
    def of(chunks: int, held_out: float, share: float, trimmed: Trim = lambda stretch: stretch) -> "Split":
        """A split of 2 chunks or more that holds out a share of all and keeps a share of the rest; at least 1 each.

        Held-out chunks lie in stretches, because neighbours share documents; `trimmed` says what stays of a stretch.
        What it takes off is in neither part; where nothing stays of any, nothing is taken off.
        """
        order = torch.randperm(chunks, generator=generator("split", chunks))
        taken, kept = torch.zeros(2, chunks, dtype=torch.bool)
        for stretch in stretches(chunks, min(chunks - 1, max(1, round(held_out * chunks)))):
            taken[stretch.start : stretch.stop] = True
            left = trimmed(stretch)
            kept[left.start : left.stop] = True
        rest = order[~taken[order]]
        return Split(rest[: max(1, round(share * len(rest)))], order[(kept if kept.any() else taken)[order]])

    def batch(self, n: int, seed: int, step: int) -> Int[Tensor, "{n}"]:
        """The chunks of a step, counted from 1: `n` after another from epochs that each hold every chunk once."""
        if step < 1:
            raise ValueError(f"steps are counted from 1; got {step}")
        size = len(self.training)
        places = torch.arange((step - 1) * n, step * n)
        epochs = [_epoch(size, seed, epoch) for epoch in range((step - 1) * n // size, (step * n - 1) // size + 1)]
        return self.training[torch.cat(epochs)[places - places[0] // size * size]]


def stretches(chunks: int, held_out: int) -> list[range]:
    """Runs of neighbours with `held_out` of so many chunks in all: the last ones of each equal part of the corpus."""
    n = min(STRETCHES, max(1, held_out // STRETCH))
    ends = [(chunks * i // n, held_out * i // n) for i in range(n + 1)]
    return [range(stop - (there - before), stop) for (_, before), (stop, there) in pairwise(ends)]


@lru_cache(maxsize=4)
def _epoch(size: int, seed: int, epoch: int) -> Int[Tensor, "{size}"]:
    return torch.randperm(size, generator=generator("epoch", seed, epoch))


@dataclass(frozen=True)
class Draw:
    """Sequences on their way to the model: which chunks they are, of how many symbols, and the stream they answer."""

    tokens: Tokens
    chunks: Int[Tensor, "sequence"]
    vocab: int
    stream: tuple[object, ...]


@dataclass(frozen=True)
class StreamEdit(Spec):
    """A change to sequences, in training and held-out ones alike. Positions are counted from 0."""

    def __call__(self, draw: Draw) -> Tokens:
        """The changed sequences."""
        raise NotImplementedError

    def check(self, vocab: int, length: int) -> None:
        """Raises InputError where sequences of `length` tokens out of `vocab` cannot be changed so."""
        raise NotImplementedError


@dataclass(frozen=True)
class RandomAt(StreamEdit):
    """Uniform tokens at positions `start` up to but not including `stop`: anew with each draw, or one set per chunk.

    The paper re-samples; its released code drew one set per chunk (`redraw=False`).
    """

    start: int = 0
    stop: int = 1
    redraw: bool = True

    def __call__(self, draw: Draw) -> Tokens:
        tokens, width = draw.tokens.clone(), self.stop - self.start
        if self.redraw:
            rng = generator("random at", self.key(), *draw.stream)
            drawn = torch.randint(draw.vocab, (len(tokens), width), generator=rng)
        else:
            streams = (generator("random at", self.key(), chunk) for chunk in draw.chunks.tolist())
            drawn = torch.stack([torch.randint(draw.vocab, (width,), generator=rng) for rng in streams])
        tokens[:, self.start : self.stop] = drawn
        return tokens

    def check(self, vocab: int, length: int) -> None:
        if not 0 <= self.start < self.stop <= length:
            raise InputError(
                f"random tokens stand at positions from 0 to {length}, the length; got {self.start} to {self.stop}"
            )


@dataclass(frozen=True)
class FixedAt(StreamEdit):
    """The same token at one position of every sequence: positions 0, 1 and 2 are the paper's first to third."""

    position: int
    token: int

    def __call__(self, draw: Draw) -> Tokens:
        tokens = draw.tokens.clone()
        tokens[:, self.position] = self.token
        return tokens

    def check(self, vocab: int, length: int) -> None:
        if not (0 <= self.position < length and 0 <= self.token < vocab):
            raise InputError(
                f"a fixed token is below {vocab} at a position below {length}; got {self.token} at {self.position}"
            )
