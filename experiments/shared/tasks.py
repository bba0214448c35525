"""Tasks and data that only experiments train on, and trainings that go on: kinds that their recipes name."""

from functools import lru_cache
from typing import ClassVar

import torch

from sinkinterp.checks import whole_number
from sinkinterp.data.backcopy import BigramBackcopy
from sinkinterp.data.draws import HELD_OUT, Sample, TokenChange, generator
from sinkinterp.data.tokens import Tokens
from sinkinterp.spec import Limits, Spec
from sinkinterp.train.recipe import Recipe


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
        whole_number(self.stop, "of random tokens, stop", 1, length)
        whole_number(self.start, "of random tokens, start", 0, self.stop - 1)


class FixedAt(TokenChange):
    """The same token at one position of every sequence. Positions 0, 1 and 2 are the paper's first to third."""

    position: int
    token: int

    def __call__(self, sample: Sample) -> Tokens:
        tokens = sample.tokens.clone()
        tokens[:, self.position] = self.token
        return tokens

    def check(self, vocab: int, length: int) -> None:
        whole_number(self.position, "the position of a fixed token", 0, length - 1)
        whole_number(self.token, "a fixed token", 0, vocab - 1)


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


class Limited(_OfTask, Spec):
    """A task of which training sees only `sequences` different sequences, again and again."""

    limits: ClassVar[Limits] = {"sequences": 1}

    sequences: int
    task: BigramBackcopy = BigramBackcopy()

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


class Continued(Recipe):
    """A training that goes on from the model that another recipe trained, after a change of that model.

    first: the other recipe. change: the name of the change.
    """

    first: Recipe = Recipe()
    change: str = ""
