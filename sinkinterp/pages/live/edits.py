"""Edits that a live page offers: their words, the numbers that they take, and how an `Edit` is made of these."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...attention.kernels import Sigmoid
from ...attention.shapes import ModelShape
from ...attention.sites import Edit
from ...checks import finite_number, whole_number
from ...errors import InputError
from ...guesses import choice
from ...interventions.attention_layers import PatchNormalization
from ...interventions.changes import ChangeResidual
from ...interventions.columns import AddSinkLogit, RemoveColumn
from ...interventions.edit import Ablate
from ...interventions.operations import Zero
from ...interventions.positions import SwapPositions
from .schema import LARGEST, EditData


@dataclass(frozen=True)
class Number:
    """A number that a kind of edit takes: its words, and whether it may be any number, or counts from 0."""

    words: str
    is_real: bool = False


@dataclass(frozen=True)
class Kind:
    """A kind of edit. Its title has {0}, {1}, ... for its numbers; `make` takes the model's shape and these."""

    title: str
    numbers: Sequence[Number]
    make: Callable[..., Edit]


POSITION, LAYER, HEAD, FIRST, LAST = map(Number, ("position", "layer", "head", "layers", "to"))


def _zero(shape: ModelShape, dim: int, first: int, last: int) -> Edit:
    return ChangeResidual(Zero(), layers=_span(range(shape.n_layers + 1), first, last), dims=[dim])


def _sigmoid(shape: ModelShape, first: int, last: int) -> Edit:
    return PatchNormalization(Sigmoid(), layers=_span(shape.attention_layers, first, last))


def _sink_logit(shape: ModelShape, logit: float, first: int, last: int) -> Edit:
    return AddSinkLogit(float(logit), layers=_span(shape.attention_layers, first, last))


def _span(layers: Sequence[int], first: int, last: int) -> list[int] | None:
    """Those of the layers that lie from the first to the last one; None for all of them."""
    chosen = [layer for layer in layers if first <= layer <= last]
    if not chosen or max(first, last) > layers[-1]:
        raise InputError(
            f"layers go from a first to a last one, within {layers[0]} to {layers[-1]}; got {first} to {last}"
        )
    return None if len(chosen) == len(layers) else chosen


KINDS: Mapping[str, Kind] = {
    "swap": Kind("swap position 0 with position {0}", [POSITION], lambda shape, position: SwapPositions(0, position)),
    "column": Kind(
        "no query looks at position {0}", [POSITION], lambda shape, position: RemoveColumn(positions=[position])
    ),
    "zero": Kind("zero dimension {0} before layers {1} to {2}", [Number("dimension"), FIRST, LAST], _zero),
    "sigmoid": Kind("sigmoid in place of softmax in layers {0} to {1}", [FIRST, LAST], _sigmoid),
    "sigmoid_head": Kind(
        "sigmoid in place of softmax in layer {0}, head {1}",
        [LAYER, HEAD],
        lambda shape, layer, head: PatchNormalization(Sigmoid(), heads=[(layer, head)]),
    ),
    "sink_logit": Kind(
        "a sink logit of {0} in layers {1} to {2}", [Number("logit", is_real=True), FIRST, LAST], _sink_logit
    ),
    "off_by_one_head": Kind(
        "softmax off by one in layer {0}, head {1}",
        [LAYER, HEAD],
        lambda shape, layer, head: AddSinkLogit(0.0, heads=[(layer, head)]),
    ),
    "ablate_head": Kind(
        "zero output of layer {0}, head {1}", [LAYER, HEAD], lambda shape, layer, head: Ablate(heads=[(layer, head)])
    ),
}


def edit_of(data: EditData, shape: ModelShape) -> Edit:
    """The edit. Raises InputError for a kind that does not exist, and for numbers that do not fit it."""
    kind = choice(data.kind, KINDS, "kind of edit")
    if len(data.numbers) != len(kind.numbers):
        words = ", ".join(number.words for number in kind.numbers)
        raise InputError(f"the edit {data.kind!r} takes {words}; got {len(data.numbers)} numbers")
    return kind.make(shape, *map(_fitting, kind.numbers, data.numbers))


def _fitting(number: Number, value: float) -> int | float:
    finite_number(value, number.words, above=-LARGEST, below=LARGEST)
    return value if number.is_real else whole_number(int(value) if value.is_integer() else value, number.words, 0)
