"""The JSON that the live page and its server exchange, and the data that the page holds from the beginning.

The page carries the types of these fields, and checks every answer by them. `question_of` checks what comes back.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...attention.kernels import Sigmoid
from ...attention.shapes import ModelShape
from ...attention.sites import Edit
from ...checks import InputError, finite_number, refusing, whole_number
from ...guesses import choice
from ...interventions.attention_layers import PatchNormalization
from ...interventions.changes import ChangeResidual
from ...interventions.columns import AddSinkLogit, RemoveColumn
from ...interventions.edit import Ablate
from ...interventions.operations import Zero
from ...interventions.positions import SwapPositions
from ..atlas.schema import PageData

MOST_EDITS = 20
LARGEST = 10**6  # of any number in an edit


@dataclass(frozen=True)
class EditData:
    """An edit: one of `edits.KINDS`, and its numbers in their order."""

    kind: str
    numbers: list[float]


@dataclass(frozen=True)
class Question:
    """A question of the page: a prompt, and edits of the model that reads it.

    other: a prompt into whose run the activations of the first are patched; empty for no such map.
    """

    prompt: str
    edits: list[EditData]
    other: str


@dataclass(frozen=True)
class NumberData:
    """A number that an edit takes: its words, whether may be any, and its value at first."""

    words: str
    is_real: bool = False
    start: float = 0.0


@dataclass(frozen=True)
class KindData:
    """A kind of edit: its title, with {0}, {1}, ... for its numbers."""

    title: str
    numbers: list[NumberData]


@dataclass(frozen=True)
class StartData:
    """What the page holds before it asks. example: the prompt that it begins with. ask: the path of questions."""

    model: str
    intro: str
    example: str
    ask: str
    kinds: dict[str, KindData]


@dataclass(frozen=True)
class SuggestionData:
    """An edit to try, and what it asks."""

    title: str
    says: str
    edit: EditData


@dataclass(frozen=True)
class HeadlineData:
    """A number in every state, as text. token: the one that it is about, or nothing. note: what to compare it with."""

    label: str
    token: str
    values: list[str]
    note: str


@dataclass(frozen=True)
class NextData:
    """A likely next token, with its probability in every state."""

    token: str
    chances: list[float]


@dataclass(frozen=True)
class EntryData:
    """A residual entry among the largest, before the edits, and the edit that zeroes its dimension.

    size: its largest value over blocks, and `times` how many medians that is. It is among the largest before layers
    first to last.
    """

    position: int
    dim: int
    size: float
    times: float
    first: int
    last: int
    edit: EditData


@dataclass(frozen=True)
class AnswerData:
    """What the server answers. view, blocks: an atlas, as on the page of `view`. edits: as code would write them.

    restored: by block and position, what patching into the other prompt restores; empty without one.
    """

    view: PageData
    blocks: dict[str, str]
    edits: list[str]
    suggestions: list[SuggestionData]
    headline: list[HeadlineData]
    next: list[NextData]
    massive: list[EntryData]
    restored: list[list[float]]


def question_of(plain: Any) -> Question:
    """The question that JSON asks. Raises InputError for anything else."""
    _check_question(plain)
    edits = [
        EditData(edit["kind"], [float(n) if abs(n) < LARGEST else math.inf for n in edit["numbers"]])
        for edit in plain.get("edits", [])
    ]
    return Question(plain["prompt"], edits, plain.get("other", ""))


@refusing
def _check_question(plain: Any) -> Iterator[str]:
    if not isinstance(plain, dict) or not {"prompt"} <= plain.keys() <= {"prompt", "edits", "other"}:
        yield "a question has a prompt and edits"
    if not isinstance(plain["prompt"], str) or not isinstance(plain.get("other", ""), str):
        yield "the prompt is a text"
    edits = plain.get("edits", [])
    if not isinstance(edits, list) or len(edits) > MOST_EDITS:
        yield f"edits are a list of at most {MOST_EDITS}"
    for edit in edits:
        if not isinstance(edit, dict) or edit.keys() != {"kind", "numbers"} or not isinstance(edit["kind"], str):
            yield "an edit has a kind and numbers"
        if not isinstance(edit["numbers"], list) or not all(type(n) in (int, float) for n in edit["numbers"]):
            yield "the numbers of an edit are a list of numbers"


@dataclass(frozen=True)
class Kind(KindData):
    """A kind of edit. `make` takes the model's shape and the numbers."""

    make: Callable[..., Edit]


POSITION, LAYER, HEAD, FIRST, LAST = map(NumberData, ("position", "layer", "head", "layers", "to"))


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
    "zero": Kind("zero dimension {0} before layers {1} to {2}", [NumberData("dimension"), FIRST, LAST], _zero),
    "sigmoid": Kind("sigmoid in place of softmax in layers {0} to {1}", [FIRST, LAST], _sigmoid),
    "sigmoid_head": Kind(
        "sigmoid in place of softmax in layer {0}, head {1}",
        [LAYER, HEAD],
        lambda shape, layer, head: PatchNormalization(Sigmoid(), heads=[(layer, head)]),
    ),
    "sink_logit": Kind(
        "a sink logit of {0} in layers {1} to {2}", [NumberData("logit", is_real=True), FIRST, LAST], _sink_logit
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


def _fitting(number: NumberData, value: float) -> int | float:
    finite_number(value, number.words, above=-LARGEST, below=LARGEST)
    return value if number.is_real else whole_number(int(value) if value.is_integer() else value, number.words, 0)
