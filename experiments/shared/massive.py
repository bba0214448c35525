"""Finds a model's massive activations, for experiments that measure and edit them."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinkinterp.attention.sites import RESIDUAL
from sinkinterp.backends.subject import Subject
from sinkinterp.data.tokens import TokenSet
from sinkinterp.measurement.measure import measure
from sinkinterp.metrics.metric import Metric
from sinkinterp.metrics.residuals import is_massive

SEARCHED = 32  # sequences in which they are looked for
FIRST = Metric("first", RESIDUAL, lambda x: x[:, 0].float())
FIRST_IS_MASSIVE = Metric("first_is_massive", RESIDUAL, lambda x: is_massive(x)[:, 0].float())


@dataclass(frozen=True)
class MassiveDims:
    """Dimensions and blocks of the first token's massive activations.

    dims: those that are massive in most sequences, in some block; the largest one where none is. Largest first.
    largest: all dimensions, by their size in the tallest block.
    onset: the first block before which one of `dims` is massive in most sequences; `tallest` where none is.
    tallest: the block with the largest entry, mean over sequences.
    massive: whether any dimension is massive in most sequences.
    """

    dims: tuple[int, ...]
    largest: tuple[int, ...]
    onset: int
    tallest: int
    massive: bool

    def others(self, seed: int) -> tuple[int, ...]:
        """As many other dimensions, drawn at random: a control."""
        rest = sorted(set(self.largest) - set(self.dims))
        drawn = torch.randperm(len(rest), generator=torch.Generator().manual_seed(seed))[: len(self.dims)]
        return tuple(rest[i] for i in sorted(drawn.tolist()))

    def line(self) -> str:
        """Which dimensions, for a note."""
        kind = "massive in most sequences" if self.massive else "the largest; none is massive"
        return f"dimension {', '.join(map(str, self.dims))} ({kind}, of {SEARCHED} sequences at most)"


def massive_dims(subject: Subject, token_set: TokenSet) -> MassiveDims:
    """The massive dimensions of the first tokens of the first sequences, by the criterion of `is_massive`."""
    tokens = TokenSet.of(token_set.tokens[:SEARCHED])
    report = measure(subject, tokens, positions=(0,), instruments=[(FIRST, FIRST_IS_MASSIVE)])
    read = slice(subject.shape.n_layers)  # blocks that a layer reads, so not the last one's output
    return chosen_dims(report.extra(FIRST)[:, read], report.extra(FIRST_IS_MASSIVE)[:, read] > 0)


def chosen_dims(
    first: Float[Tensor, "sequence block d_model"], massive: Bool[Tensor, "sequence block d_model"]
) -> MassiveDims:
    """The dimensions and blocks, from the first tokens' residuals and from which of their entries are massive."""
    size, usual = first.abs().mean(0), massive.float().mean(0) > 0.5
    tallest = int(size.amax(1).argmax())
    largest = tuple(size[tallest].argsort(descending=True).tolist())
    dims = tuple(dim for dim in largest if usual[:, dim].any())
    onset = int(usual.any(1).int().argmax()) if dims else tallest
    return MassiveDims(dims or largest[:1], largest, onset, tallest, massive=bool(dims))
