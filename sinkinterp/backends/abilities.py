"""What a subject can do beside what the contract demands: it shows the last sequences of the pass that checks edits.

These nine sequences have equal tokens. Counted from the end:

    9 to 6   no head returns anything; `_DoubleUpdates` compares what feed-forward layers return with what blocks add
    5        its positions run backwards
    4, 3     no head returns anything, and they enter the first block as 1 does; the positions of 4 run backwards
    2, 1     nothing is edited
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import override

from ..attention.call import AttentionCall
from ..attention.shapes import HeadOutput, Residual
from ..data.tokens import Tokens
from ..interventions.edit import Edit
from .subject import Logits, ResidualRead

N_SEQUENCES = 9
_DOUBLED = slice(-9, -5)
_BACKWARDS = -5
_ISOLATED = slice(-4, -2)
_NOISE = -2
_PLAIN = -1

Rows = Float[Tensor, "row pos d_model"]


@dataclass(frozen=True)
class Abilities:
    """mlp_layers: the blocks whose feed-forward update is read as what the block adds to the residual stream.

    takes_positions: whether position ids change the logits. positions_are_plain: whether they count from 0, and reach
    nothing but the input of the first block and attention.
    """

    mlp_layers: tuple[int, ...]
    takes_positions: bool
    positions_are_plain: bool


class Changes:
    """The numbers that `changes` returned for a pass of `n` sequences."""

    def __init__(self, summary: Tensor, n: int) -> None:
        self.of_sequences: list[float] = summary[:n].tolist()
        self.of_isolated = summary[n].item()
        self.plain = summary[n + 1 :]
        self.noise = self.of_sequences[_NOISE]

    def is_real(self, change: float) -> bool:
        """Whether a change is more than rounding."""
        return change > 10 * self.noise + 1e-6 * self.plain.abs().max().item()


def changes(logits: Logits) -> Float[Tensor, " number"]:
    """How far each sequence is from the last, and the isolated two from each other, at most; then the last logits."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    of_sequences = (logits - logits[_PLAIN]).abs().amax((1, 2))
    first, second = logits[_ISOLATED]
    return torch.cat((of_sequences, (first - second).abs().amax()[None], logits[_PLAIN, -1]))


def of(answers: Mapping[str, Tensor], changes: Changes, mlp_layers: Sequence[int], is_plain: bool) -> Abilities:
    """The abilities of a subject, from the answers to `STREAM` and `UPDATES` and what `changes` returned.

    mlp_layers: the blocks whose updates were read. is_plain: whether the logits of the unedited sequences are those of
    the model that counts positions itself.
    """
    eps, stream = torch.finfo(answers["stream"].dtype).eps, answers["stream"].cpu().double()
    updates = answers["update"].cpu().double().unbind(1) if mlp_layers else ()
    read = zip(mlp_layers, updates, strict=True)
    return Abilities(
        mlp_layers=tuple(i for i, update in read if _is_added(update, stream[:, i], stream[:, i + 1], eps)),
        takes_positions=changes.is_real(changes.of_sequences[_BACKWARDS]),
        positions_are_plain=is_plain and not changes.is_real(changes.of_isolated),
    )


def position_ids(tokens: Tokens) -> Int[Tensor, "sequence pos"]:
    """The positions of every sequence: consecutive ones, backwards in two."""
    ids = torch.arange(tokens.shape[1]).repeat(len(tokens), 1)
    ids[[_BACKWARDS, _ISOLATED.start]] = ids[_PLAIN].flip(0)
    return ids


def _is_added(update: Rows, before: Rows, after: Rows, eps: float) -> bool:
    """Whether a block adds what is read as its feed-forward update, and nothing else that looks like one.

    - What the block returns grows by the update when the update is doubled.
    - What else it adds is alike at all positions, as a bias is, or depends on other positions, as a recurrence does.
    """
    rounding = 4 * eps * (update.abs() + before.abs() + after.abs())
    slack = rounding[0] + max(1e-3, 8 * eps) * update[0].abs().amax()
    rest = after - before - update
    is_bias = _is_within(rest[0] - rest[0, 0], slack + slack[0])
    mixes = not _is_within(rest[3, -1] - rest[0, -1], 4 * (rounding[3, -1] + rounding[0, -1]))
    return _is_within(after[2] - update[0], slack) and (is_bias or mixes)


def _is_within(x: Tensor, limit: Tensor) -> bool:
    return bool((x.abs() <= limit).all())


def doubled_rows(x: Residual) -> Rows:
    """The four sequences that `_DoubleUpdates` changes."""
    return x[_DOUBLED]


STREAM: Mapping[str, ResidualRead] = {"stream": doubled_rows}
UPDATES: Mapping[str, ResidualRead] = {"update": doubled_rows}


@dataclass(frozen=True)
class _SilenceHeads(Edit):
    """No head returns anything in the sequences 9 to 6, 4 and 3 from the end."""

    @override
    def output(self, call: AttentionCall, z: HeadOutput) -> HeadOutput:
        z = z.clone()
        z[_DOUBLED] = z[_ISOLATED] = 0
        return z


@dataclass(frozen=True)
class _DoubleUpdates(Edit):
    """Of four sequences,

    - the first runs as it is;
    - the second enters every block as the first does, and its feed-forward update is twice the first's;
    - the third enters every block as what the second has gained over the first in the block before;
    - the fourth enters every block as the first does, except at the first position.
    """

    @override
    def residual(self, block: int, x: Residual) -> Residual:
        first, second, *_ = x[_DOUBLED]
        other_start = torch.cat((-first[:1], first[1:]))
        return _with_rows(x, torch.stack((first, first, second - first, other_start)))

    @override
    def mlp(self, block: int, x: Residual) -> Residual:
        first, _, *others = x[_DOUBLED]
        return _with_rows(x, torch.stack((first, 2 * first, *others)))


@dataclass(frozen=True)
class _Isolate(Edit):
    """Two sequences enter the first block as the last sequence does."""

    @override
    def residual(self, block: int, x: Residual) -> Residual:
        if block > 0:
            return x
        x = x.clone()
        x[_ISOLATED] = x[_PLAIN]
        return x


def _with_rows(x: Residual, rows: Rows) -> Residual:
    x = x.clone()
    x[_DOUBLED] = rows
    return x


EDITS: tuple[Edit, ...] = (_SilenceHeads(), _DoubleUpdates(), _Isolate())
