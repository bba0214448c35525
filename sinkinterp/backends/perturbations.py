"""Whether edits reach the model: the first sequences of the pass that checks edits.

These are six tests and six records, and all have the tokens of the last sequence of the pass, which nothing edits. A
test enters every block as that last sequence does, but for what it changes there, so that each block is tested by
itself; the first two change the input of every other block. A record enters a block as what its test, compared with the
last sequence, has changed in the block before.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from ..attention.call import AttentionCall
from ..attention.model_shape import ModelShape
from ..attention.shapes import HeadOutput, Residual
from ..interventions.edit import CALL, MLP, OUTPUT, RESIDUAL, Edit, Site
from .subject import ResidualRead

N_SEQUENCES = 12
_N_TESTS = 6
_CALL = 2
_OUTPUT = 3
_MLP = 4
_NOISE = 5  # this test changes nothing
_ROWS: Mapping[Site, int] = {CALL: _CALL, OUTPUT: _OUTPUT, MLP: _MLP}


def lost(changes: Float[Tensor, "test block"], of_last: list[float], shape: ModelShape) -> list[tuple[Site, int]]:
    """The sites and blocks whose change is lost: the block returns what it does without it, up to noise.

    changes: the answers to `RECORDS`. of_last: how far the logits of each test are from those of the last sequence.
    """
    sizes = changes[:, 1:].tolist()
    sites = [(RESIDUAL, block, block % 2) for block in range(shape.n_layers)]
    sites += [(site, block, row) for site, row in _ROWS.items() for block in site.layers(shape)]
    absent = [(site, block) for site, block, row in sites if not sizes[row][block] > 10 * sizes[_NOISE][block]]
    last = shape.n_layers
    return absent if of_last[last % 2] > 10 * of_last[_NOISE] else [*absent, (RESIDUAL, last)]


def largest_changes(x: Residual) -> Float[Tensor, " test"]:
    """The largest entry of every record."""
    return x[_N_TESTS:N_SEQUENCES].abs().amax((1, 2))


RECORDS: Mapping[str, ResidualRead] = {"changes": largest_changes}


@dataclass(frozen=True)
class _Residual(Edit):
    @override
    def residual(self, block: int, x: Residual) -> Residual:
        x = x.clone()
        x[_N_TESTS:N_SEQUENCES] = x[:_N_TESTS] - x[-1]
        x[:_N_TESTS] = x[-1]
        x[block % 2] = 1 - x[-1]
        return x


@dataclass(frozen=True)
class _Call(Edit):
    """Its sequence also attends to all values alike, since a slot may have taken all weight."""

    @override
    def call(self, call: AttentionCall) -> AttentionCall:
        weights = call.pattern()
        weights[_CALL] = 1 / weights.shape[-1]
        return replace(call, v=_changed(call.v, _CALL)).with_pattern(weights)


@dataclass(frozen=True)
class _Output(Edit):
    @override
    def output(self, call: AttentionCall, z: HeadOutput) -> HeadOutput:
        return _changed(z, _OUTPUT)


@dataclass(frozen=True)
class _FeedForward(Edit):
    @override
    def mlp(self, block: int, x: Residual) -> Residual:
        return _changed(x, _MLP)


def _changed(x: Tensor, row: int) -> Tensor:
    """1 - x in one sequence."""
    x = x.clone()
    x[row] = 1 - x[row]
    return x


EDITS: tuple[Edit, ...] = (_Residual(), _Call(), _Output(), _FeedForward())
