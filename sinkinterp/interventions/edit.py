"""What users give as edits: one edit or several, functions of attention calls, and their description as text."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, fields, is_dataclass
from types import NoneType
from typing import Any

import torch
from torch import Tensor

from ..attention.answers import called
from ..attention.call import AttentionCall
from ..attention.sites import CHANGES, Edit
from ..errors import InputError
from .habits import edit_of_hook, is_hook


@dataclass(frozen=True)
class CallFunction(Edit):
    """A plain function from the call of every attention layer to the call that takes its place."""

    function: Callable[..., AttentionCall]

    def call(self, call: AttentionCall) -> AttentionCall:
        edited = called(self.function, description(self.function), call)
        if not isinstance(edited, AttentionCall):
            fix = "return replace(call, q=...), call.with_pattern(...), or the call itself where it stays"
            raise InputError(f"{description(self.function)} returned a {type(edited).__name__}, not a call; {fix}")
        return edited


Edits = Edit | Callable[[AttentionCall], AttentionCall] | Sequence[Edit | Callable[[AttentionCall], AttentionCall]]


def edits_of(edits: Any) -> tuple[Edit, ...]:
    """One edit, or several in their order. A function takes and returns an attention call.

    A pair of a name of TransformerLens and a function is an edit too; see `habits`. Raises InputError for others.
    """
    given = (edits,) if isinstance(edits, Edit) or callable(edits) or is_hook(edits) else edits
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping):
        given = (edits,)
    return tuple(_edit_of(edit) for edit in given)


def _edit_of(edit: Any) -> Edit:
    if is_hook(edit):
        return edit_of_hook(*edit)
    if isinstance(edit, Edit):
        if all(getattr(type(edit), name) is getattr(Edit, name) for name in CHANGES):
            raise InputError(f"{type(edit).__name__} overrides none of {', '.join(CHANGES)}, so it changes nothing")
        return edit
    if callable(edit) and not isinstance(edit, type | torch.nn.Module) and not is_dataclass(edit):  # an operation
        return CallFunction(edit)
    what = edit.__name__ if isinstance(edit, type) else type(edit).__name__
    raise InputError(f"{what} is not an edit; give one or a list of them, such as edits=si.SwapPositions(0, 4)")


def description(value: object) -> str:
    """An edit as code would write it, without fields that have their default value; tensors by their shape."""
    if isinstance(value, Tensor):
        return f"tensor{tuple(value.shape)}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {description(item)}" for key, item in value.items()) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(description, value)) + "]"
    if callable(value) and not is_dataclass(value):
        return getattr(value, "__name__", type(value).__name__)
    if not is_dataclass(value):
        return repr(value)
    shown = [f for f in fields(value) if not (f.kw_only and _is_default(f, getattr(value, f.name)))]
    by_place = [description(getattr(value, f.name)) for f in shown if not f.kw_only]
    by_name = [f"{f.name}={description(getattr(value, f.name))}" for f in shown if f.kw_only]
    return f"{type(value).__name__}({', '.join(by_place + by_name)})"


def _is_default(field: Field, value: object) -> bool:
    return value is field.default or (
        isinstance(value, int | float | str | tuple | NoneType) and value == field.default
    )
