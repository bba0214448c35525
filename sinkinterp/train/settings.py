"""`--set key=value`: changes fields of a spec, each parsed by its type."""

import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields
from difflib import get_close_matches
from typing import Any, NoReturn, TypeVar, get_args, get_type_hints

from ..checks import InputError, each_once, refusal
from ..spec import Spec

S = TypeVar("S", bound=Spec)
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def changed(spec: S, settings: Sequence[str]) -> S:
    """`spec` with all `settings` applied, such as "lr=1e-2", "model.n_layers=4" or "schedule=CosineRate".

    A field that holds a spec takes the name of another kind of spec, with its defaults. Kinds are set before their
    fields. Raises InputError for text that is not a setting, an unknown key, a value of another type, and sizes
    that do not fit together.
    """
    pairs = [_pair(setting) for setting in settings]
    each_once([key for key, _ in pairs], "the setting")
    tree = spec.to_dict()
    for key, text in sorted(pairs, key=lambda pair: pair[0].count(".")):
        _set(tree, key, text)
    with refusal(" ".join(settings), of=(InputError, ValueError, TypeError)):
        return type(spec).from_dict(tree)


def _pair(setting: str) -> tuple[str, str]:
    key, equals, text = setting.partition("=")
    if not equals or not key.strip() or not text.strip():
        raise InputError(f"a setting is key=value, such as lr=1e-2; got {setting!r}")
    return key.strip(), text.strip()


def _set(tree: dict[str, Any], key: str, text: str) -> None:
    """Sets one key in the JSON form of a spec."""
    *path, field = key.split(".")
    inner = tree
    for name in path:
        if not isinstance(inner.get(name), dict):
            _refuse(tree, key)
        inner = inner[name]
    owner = Spec.kinds[inner["kind"]]
    if key == "seed":
        raise InputError("the seed is an argument of its own, seed=..., and not a setting")
    if field not in {f.name for f in fields(owner)}:
        _refuse(tree, key)
    inner[field] = _value(get_type_hints(owner)[field], key, text)


def _refuse(tree: dict[str, Any], key: str) -> NoReturn:
    """Raises InputError, which names settings like the unknown one."""
    known = list(_keys_of(tree))
    same_end = [name for name in known if name.split(".")[-1] == key.split(".")[-1]]
    near = (same_end or get_close_matches(key, known, n=3) or [name for name in known if "." not in name])[:20]
    raise InputError(f"there is no setting {key!r}; near ones: {', '.join(near)}")


def _keys_of(tree: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in tree.items():
        if name != "kind":
            yield prefix + name
            if isinstance(value, dict):
                yield from _keys_of(value, f"{prefix}{name}.")


def _value(hint: Any, key: str, text: str) -> Any:
    """`text` as a value of the first of the field's types that can read it, in JSON form."""
    options = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        try:
            return _PARSERS[option](text) if option in _PARSERS else _defaults(_kinds(option)[text])
        except (ValueError, KeyError):
            continue
    names = [_NAMES.get(option) or ", ".join(sorted(_kinds(option))) or str(option) for option in options]
    raise InputError(f"{key} takes {' or '.join(names)}; got {text!r}")


def _kinds(option: Any) -> dict[str, type[Spec]]:
    """The kinds of spec that a field of this type may hold, by name, without base classes."""
    bases = {base for kind in Spec.kinds.values() for base in kind.__mro__[1:]}
    leaves = {name: kind for name, kind in Spec.kinds.items() if kind not in bases}
    if option is Any:  # the type of a recipe's data, which has no common base class
        return {name: kind for name, kind in leaves.items() if {"vocab", "length"} <= {*dir(kind)}}
    return {name: kind for name, kind in leaves.items() if isinstance(option, type) and issubclass(kind, option)}


def _defaults(kind: type[Spec]) -> dict[str, Any]:
    """The JSON form of a kind, with the fields that have defaults."""
    values = {f.name: f.default for f in fields(kind) if f.default is not MISSING}
    return {"kind": kind.__name__} | {k: v.to_dict() if isinstance(v, Spec) else v for k, v in values.items()}


def _integer(text: str) -> int:
    with suppress(ValueError):
        return int(text)
    number = float(text)
    if not number.is_integer():  # neither are infinity and NaN
        raise ValueError(text)
    return int(number)


def _none(text: str) -> None:
    if text.lower() != "none":
        raise ValueError(text)


_PARSERS: dict[Any, Callable[[str], Any]] = {
    int: _integer,
    float: float,
    str: str,
    bool: lambda text: _TRUTH[text.lower()],
    type(None): _none,
}
_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", type(None): "none"}
