"""Edits that a live page offers, from JSON: {"kind": "swap", "position": 4}."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...attention.similarities import Sigmoid
from ...errors import InputError
from ...interventions.edit import Edit
from ...interventions.normalisation import PatchNormalization
from ...interventions.operations import Zero
from ...interventions.positions import SwapPositions
from ...interventions.sites import ChangeResidual
from ...interventions.slots import AddSinkLogit

MOST = 20  # edits at once
LARGEST = 10**6  # of any number in an edit


@dataclass(frozen=True)
class Kind:
    """A kind of edit: what the page calls it, the text of each of its fields, and what makes it of their numbers."""

    title: str
    fields: Mapping[str, str]
    make: Callable[..., Edit]


def _zero(first: int, last: int, dim: int) -> Edit:
    if not first <= last:
        raise InputError(f"layers go from the first to the last; got {first} to {last}")
    if last - first > 1000:
        raise InputError(f"layers {first} to {last} are more than any model has; name fewer")
    return ChangeResidual(Zero(), layers=range(first, last + 1), dims=[dim])


KINDS: Mapping[str, Kind] = {
    "swap": Kind(
        "swap p1 with another position", {"position": "position"}, lambda position: SwapPositions(0, position)
    ),
    "zero": Kind(
        "zero a massive dimension",
        {"first": "before layers", "last": "to", "dim": "dimension"},
        _zero,
    ),
    "sigmoid": Kind(
        "sigmoid in place of softmax",
        {"layer": "layer"},
        lambda layer: PatchNormalization(Sigmoid(), layers=[layer]),
    ),
    "sink_logit": Kind(
        "add a sink logit",
        {"layer": "layer", "logit": "logit"},
        lambda layer, logit: AddSinkLogit(logit=float(logit), layers=[layer]),
    ),
}
REAL = ("logit",)  # fields that take any number; the others take whole numbers from 0


def edits_from(plain: Any) -> Sequence[Edit]:
    """The edits that a list in JSON names. Raises InputError for anything else."""
    if not isinstance(plain, list) or len(plain) > MOST:
        raise InputError(f"edits are a list of at most {MOST}")
    return [_edit(fields) for fields in plain]


def _edit(fields: Any) -> Edit:
    name = fields.get("kind") if isinstance(fields, dict) else None
    if not isinstance(name, str) or name not in KINDS:
        raise InputError(f"an edit has a kind, one of {', '.join(KINDS)}")
    kind, numbers = KINDS[name], {field: value for field, value in fields.items() if field != "kind"}
    if numbers.keys() != kind.fields.keys():
        raise InputError(f"the edit {name!r} takes {' and '.join(kind.fields)}; got {', '.join(numbers) or 'nothing'}")
    return kind.make(**{field: _number(name, field, value) for field, value in numbers.items()})


def _number(kind: str, field: str, value: Any) -> int | float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or abs(value) > LARGEST:
        raise InputError(f"{field} of the edit {kind!r} is a number of ordinary size")
    if field in REAL:
        return value
    if value != int(value) or value < 0:
        raise InputError(f"{field} of the edit {kind!r} is a whole number from 0; got {value:g}")
    return int(value)
