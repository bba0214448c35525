"""Finds a model's massive activations, for experiments that measure and edit them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinkinterp.attention.sites import RESIDUAL
from sinkinterp.backends.subject import Subject
from sinkinterp.data.tokens import TokenSet
from sinkinterp.interventions.changes import Change, ChangeResidual, Operation
from sinkinterp.measurement.measure import measure
from sinkinterp.metrics.metric import Metric
from sinkinterp.metrics.residuals import LEAST, is_massive

from .effects import Entry

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
    onsets: of each of `dims`, the first block before which its mean size passes 100; `tallest` where none does.
    """

    dims: tuple[int, ...]
    largest: tuple[int, ...]
    onset: int
    tallest: int
    massive: bool
    onsets: tuple[int, ...]

    def edits(self, operation: Operation, position: int = 0, n_layers: int = 0) -> list[Change]:
        """The operation on each of `dims` at a position, before every block from its own onset on.

        One edit before the first of these blocks is not enough: later blocks may write the entry again.
        """
        site = ChangeResidual(operation, positions=[position])
        pairs = zip(self.dims, self.onsets, strict=True)
        return [replace(site, dims=[dim], layers=range(onset, n_layers)) for dim, onset in pairs]

    def entries(self, *positions: int) -> tuple[Entry, ...]:
        """The entries that such edits change, at each of the positions."""
        pairs = list(zip(self.dims, self.onsets, strict=True))
        return tuple(Entry(position, dim, onset) for position in positions for dim, onset in pairs)

    def with_dims(self, dims: Sequence[int]) -> "MassiveDims":
        """The same with other dimensions, each from the blocks of those that they stand for, or from the first."""
        onsets = (*self.onsets, *[min(self.onsets)] * len(dims))[: len(dims)]
        return replace(self, dims=tuple(dims), onsets=onsets)

    def others(self, seed: int, count: int | None = None) -> tuple[int, ...]:
        """Other dimensions, drawn at random: a control. As many by default."""
        rest = sorted(set(self.largest) - set(self.dims))
        drawn = torch.randperm(len(rest), generator=torch.Generator().manual_seed(seed))
        return tuple(rest[i] for i in sorted(drawn[: count or len(self.dims)].tolist()))

    def line(self) -> str:
        """Which dimensions, for a note."""
        kind = "massive in most sequences" if self.massive else "the largest; none is massive"
        from_blocks = f"from block {', '.join(map(str, self.onsets))} on"
        return f"dimension {', '.join(map(str, self.dims))} {from_blocks} ({kind}, of {SEARCHED} sequences at most)"


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
    large, chosen = size > LEAST, dims or largest[:1]
    onsets = tuple(int(large[:, dim].int().argmax()) if large[:, dim].any() else tallest for dim in chosen)
    return MassiveDims(chosen, largest, onset, tallest, bool(dims), onsets)
