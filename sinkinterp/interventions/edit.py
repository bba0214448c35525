"""What users give as edits: one or several, and functions of attention calls."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, fields, is_dataclass
from types import NoneType
from typing import Any

import torch
from torch import Tensor

from ..attention import CHANGES, AttentionCall, Edit, Site, called
from ..checks import InputError, instance_of


@dataclass(frozen=True)
class CallFunction(Edit):
    """A plain function from the call of every attention layer to the call that takes its place."""

    function: Callable[..., AttentionCall]

    def call(self, call: AttentionCall) -> AttentionCall:
        who = description(self.function)
        must = "must return a call: replace(call, q=...), call.with_pattern(...), or the call itself"
        return instance_of(called(self.function, who, call), AttentionCall, f"{who} {must}")


AnyEdit = Edit | Callable[[AttentionCall], AttentionCall]
Edits = AnyEdit | Sequence[AnyEdit]


def edits_of(edits: Any) -> tuple[Edit, ...]:
    """One edit, or several in their order. A function takes and returns an attention call.

    Raises InputError for anything else.
    """
    given = (edits,) if isinstance(edits, Edit) or callable(edits) else edits
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping):
        given = (edits,)
    return tuple(_edit_of(edit) for edit in given)


def _edit_of(edit: Any) -> Edit:
    if isinstance(edit, Edit):
        if all(getattr(type(edit), name) is getattr(Edit, name) for name in CHANGES):
            raise InputError(f"{type(edit).__name__} overrides none of {', '.join(CHANGES)}, so it changes nothing")
        return edit
    if callable(edit) and not isinstance(edit, type | torch.nn.Module) and not is_dataclass(edit):  # an operation
        return CallFunction(edit)
    what = edit.__name__ if isinstance(edit, type) else repr(edit) if isinstance(edit, str) else type(edit).__name__
    raise InputError(f"{what:.60} is not an edit; give one or a list of them, such as edits=si.SwapPositions(0, 4)")


def description(value: object) -> str:
    """An edit as code would write it, without fields that have their default value; tensors by their shape.

    The paper's name, such as p1 <-> p5, stands behind it: positions of code count from 0, those of the paper from 1.
    """
    if isinstance(value, Tensor):
        return f"tensor{tuple(value.shape)}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {description(item)}" for key, item in value.items()) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(description, value)) + "]"
    if callable(value) and not is_dataclass(value):
        return getattr(value, "__name__", type(value).__name__)
    if isinstance(value, Site) or not is_dataclass(value):
        return repr(value)
    shown = [f for f in fields(value) if not (f.kw_only and _is_default(f, getattr(value, f.name)))]
    by_place = [description(getattr(value, f.name)) for f in shown if not f.kw_only]
    by_name = [f"{f.name}={description(getattr(value, f.name))}" for f in shown if f.kw_only]
    in_paper = f" ({value.in_paper})" if hasattr(value, "in_paper") else ""
    return f"{type(value).__name__}({', '.join(by_place + by_name)}){in_paper}"


def _is_default(field: Field[Any], value: object) -> bool:
    is_plain = isinstance(value, int | float | str | tuple | NoneType)
    return value is field.default or (is_plain and value == field.default)
