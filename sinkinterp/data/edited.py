"""Tasks made from another task: with changed sequences, or with few different ones."""

from dataclasses import dataclass
from functools import lru_cache

import torch

from ..errors import InputError
from ..spec import Spec
from .backcopy import BigramBackcopy
from .packing import HELD_OUT
from .seeding import generator
from .stream_edits import Sample, StreamEdit
from .tokens import Tokens


@dataclass(frozen=True)
class Edited(Spec):
    """A task whose sequences are changed by `edits`, those for training and the held-out ones alike."""

    task: BigramBackcopy = BigramBackcopy()
    edits: tuple[StreamEdit, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for edit in self.edits:
            edit.check(self.vocab, self.length)

    @property
    def vocab(self) -> int:
        return self.task.vocab

    @property
    def length(self) -> int:
        return self.task.length

    @property
    def title(self) -> str:
        return f"{self.task.title} with changed tokens"

    def sample(self, n: int, *stream: object) -> Tokens:
        """`n` sequences, the same for the same stream."""
        tokens = self.task.sample(n, *stream)
        for edit in self.edits:
            tokens = edit(Sample(tokens, torch.arange(n), self.vocab, stream))
        return tokens


@dataclass(frozen=True)
class Limited(Spec):
    """A task of which training sees only `sequences` different sequences, again and again."""

    sequences: int
    task: BigramBackcopy = BigramBackcopy()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sequences < 1:
            raise InputError(f"training needs at least 1 sequence; got {self.sequences}")

    @property
    def vocab(self) -> int:
        return self.task.vocab

    @property
    def length(self) -> int:
        return self.task.length

    @property
    def title(self) -> str:
        return f"{self.task.title}, {self.sequences} sequences"

    def sample(self, n: int, *stream: object) -> Tokens:
        """`n` of the sequences, the same for the same stream; held-out ones are any that the task has."""
        if stream == HELD_OUT:
            return self.task.sample(n, *stream)
        return _pool(self)[torch.randint(self.sequences, (n,), generator=generator("limited", *stream))]


@lru_cache(maxsize=2)
def _pool(limited: Limited) -> Tokens:
    """The sequences that training sees."""
    return limited.task.sample(limited.sequences, "limited")
