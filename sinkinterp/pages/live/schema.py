"""What the live page and its server exchange, as JSON, and what the page holds from the beginning.

The page carries the types of these fields, and checks every answer by them. `question_of` checks what comes back.
"""

import math
from dataclasses import dataclass
from typing import Any

from ...errors import InputError
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
    """What the page asks: what the model does with a prompt, before and after edits.

    other: a prompt into whose run the activations of the first are patched; empty for no such map.
    """

    prompt: str
    edits: list[EditData]
    other: str


@dataclass(frozen=True)
class NumberData:
    """A number that an edit takes, and its value in a new edit."""

    words: str
    is_real: bool
    start: float


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
    if not isinstance(plain, dict) or not {"prompt"} <= plain.keys() <= {"prompt", "edits", "other"}:
        raise InputError("a question has a prompt and edits")
    prompt, edits, other = plain["prompt"], plain.get("edits", []), plain.get("other", "")
    if not isinstance(prompt, str) or not isinstance(other, str):
        raise InputError("the prompt is a text")
    if not isinstance(edits, list) or len(edits) > MOST_EDITS:
        raise InputError(f"edits are a list of at most {MOST_EDITS}")
    return Question(prompt, list(map(_edit_data, edits)), other)


def _edit_data(plain: Any) -> EditData:
    if not isinstance(plain, dict) or plain.keys() != {"kind", "numbers"} or not isinstance(plain["kind"], str):
        raise InputError("an edit has a kind and numbers")
    numbers = plain["numbers"]
    if not isinstance(numbers, list) or not all(type(number) in (int, float) for number in numbers):
        raise InputError("the numbers of an edit are a list of numbers")
    return EditData(plain["kind"], [float(n) if abs(n) < LARGEST else math.inf for n in numbers])
