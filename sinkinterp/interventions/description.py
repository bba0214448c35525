"""Edits as text, for protocols and tables."""

from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass
from types import NoneType

from torch import Tensor

from .edit import Edit


def description(edit: Edit) -> str:
    """The edit as code would write it, without fields that have their default value; tensors by their shape."""
    return _as_code(edit)


def _as_code(value: object) -> str:
    if isinstance(value, Tensor):
        return f"tensor{tuple(value.shape)}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_as_code(item)}" for key, item in value.items()) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_as_code, value)) + "]"
    if not is_dataclass(value):
        return repr(value)
    shown = [f for f in fields(value) if not (f.kw_only and _is_default(f, getattr(value, f.name)))]
    by_place = [_as_code(getattr(value, f.name)) for f in shown if not f.kw_only]
    by_name = [f"{f.name}={_as_code(getattr(value, f.name))}" for f in shown if f.kw_only]
    return f"{type(value).__name__}({', '.join(by_place + by_name)})"


def _is_default(field: Field, value: object) -> bool:
    return value is field.default or (
        isinstance(value, int | float | str | tuple | NoneType) and value == field.default
    )
