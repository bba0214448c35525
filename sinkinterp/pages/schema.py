"""The types of a page's data, from the dataclasses that Python writes, as shared/checked.js checks them."""

from dataclasses import is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

_NAMES = {str: "string", int: "number", float: "number", bool: "boolean"}


def declared(kind: Any) -> Any:
    """A type in JSON: a name; [type] for a list; [type, type] for a pair; {"*": type} for a mapping; a record."""
    if is_dataclass(kind):
        return {name: declared(hint) for name, hint in get_type_hints(kind).items()}
    if get_origin(kind) is dict:
        return {"*": declared(get_args(kind)[1])}
    if get_origin(kind) in (list, tuple):
        return [declared(part) for part in get_args(kind)]
    return _NAMES[kind]
