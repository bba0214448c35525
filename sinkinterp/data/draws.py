"""Draws for training: chunks of a corpus or sequences of a task, by names and numbers alone, and their changes."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch
from jaxtyping import Int
from torch import Tensor

from ..spec import Spec
from .tokens import Tokens

HELD_OUT = ("held out",)  # the stream of the sequences that no training sees
STRETCH = 64  # the fewest held-out chunks that lie side by side in a large corpus
MAX_STRETCHES = 32
Trim = Callable[[range], range]  # from a stretch of chunks to the part of it that stays held out


def generator(*stream: object) -> torch.Generator:
    """A random generator that depends only on the names and numbers in `stream`."""
    digest = hashlib.sha256("/".join(map(str, stream)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


@dataclass(frozen=True)
class Split:
    """The numbers of the chunks to train on and of those held out, each in a mixed order that never changes.

    The chunks of a smaller share are the first ones of a larger share, and the held-out ones do not depend on it.
    """

    training: Int[Tensor, " trained"]
    held_out: Int[Tensor, " kept_back"]

    @staticmethod
    def of(chunks: int, held_out: float, share: float, trim: Trim = lambda stretch: stretch) -> "Split":
        """A split of 2 or more chunks. `held_out` is a share of all of them, and `share` a share of the others.

        Each part has at least one chunk. Held-out chunks lie in stretches, because neighbours share documents. The
        chunks that `trim` removes from a stretch are in neither part. If it would remove all, none is removed.
        """
        order = torch.randperm(chunks, generator=generator("split", chunks))
        in_stretch, stays = torch.zeros(2, chunks, dtype=torch.bool)
        for stretch in stretches(chunks, min(chunks - 1, max(1, round(held_out * chunks)))):
            in_stretch[stretch.start : stretch.stop] = True
            trimmed = trim(stretch)
            stays[trimmed.start : trimmed.stop] = True
        training = order[~in_stretch[order]]
        is_held_out = stays if stays.any() else in_stretch
        return Split(training[: max(1, round(share * len(training)))], order[is_held_out[order]])

    def batch(self, n: int, seed: int, step: int) -> Int[Tensor, " {n}"]:
        """The `n` chunks of a step, counted from 1. Steps run through epochs that each hold every chunk once."""
        return self.training[in_epochs("epoch", len(self.training), n, seed, step)]


def stretches(chunks: int, held_out: int) -> list[range]:
    """The ends of equal parts of the corpus: ranges that hold `held_out` chunks together."""
    n = min(MAX_STRETCHES, max(1, held_out // STRETCH), chunks - held_out)  # a part must be longer than its stretch
    parts = pairwise(chunks * i // n for i in range(n + 1))
    sizes = (stop - start for start, stop in pairwise(held_out * i // n for i in range(n + 1)))
    return [range(stop - size, stop) for (_, stop), size in zip(parts, sizes, strict=True)]


def in_epochs(name: str, size: int, n: int, seed: int, step: int) -> Int[Tensor, " {n}"]:
    """The `n` of `size` items that a step takes, counted from 1. Every epoch takes each once, in a new order."""
    drawn = torch.arange((step - 1) * n, step * n)  # counted over all epochs
    first_epoch, last_epoch = (step - 1) * n // size, (step * n - 1) // size
    orders = torch.cat([_epoch(name, size, seed, epoch) for epoch in range(first_epoch, last_epoch + 1)])
    return orders[drawn - first_epoch * size]


@lru_cache(maxsize=4)
def _epoch(name: str, size: int, seed: int, epoch: int) -> Int[Tensor, " {size}"]:
    """The order of the items in an epoch."""
    return torch.randperm(size, generator=generator(name, seed, epoch))


@dataclass(frozen=True)
class Sample:
    """Sequences over `vocab` symbols, the numbers of their chunks, and the stream that they were drawn for."""

    tokens: Tokens
    chunks: Int[Tensor, " sequence"]
    vocab: int
    stream: tuple[object, ...]


class TokenChange(Spec):
    """Puts other tokens into sequences, both for training and held out. Positions are counted from 0."""

    def __call__(self, sample: Sample) -> Tokens:
        """The changed sequences."""
        raise NotImplementedError

    def check(self, vocab: int, length: int) -> None:
        """Raises InputError unless the change fits sequences of `length` tokens over `vocab` symbols."""
        raise NotImplementedError
