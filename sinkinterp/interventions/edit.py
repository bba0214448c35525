"""What users give as edits: one or several, and functions of attention calls."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any

import torch

from ..attention import CHANGES, AttentionCall, Edit, called, description
from ..checks import InputError, instance_of
from .changes import Operation


@dataclass(frozen=True, repr=False)
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
    if isinstance(edit, Operation):
        code = description(edit)
        raise InputError(f"{code:.60} is an operation and needs a site: edits=Change(si.sites.RESIDUAL, {code:.60})")
    if isinstance(edit, type) and issubclass(edit, Edit | Operation):
        raise InputError(f"{edit.__name__} is not an edit; write {edit.__name__}(), with its values")
    what = edit.__name__ if isinstance(edit, type) else repr(edit) if isinstance(edit, str) else type(edit).__name__
    raise InputError(f"{what:.60} is not an edit; give one or a list of them, such as edits=si.SwapPositions(0, 4)")
