"""`--set key=value`: a spec with some of its fields changed, each parsed by its own type."""

import types
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from difflib import get_close_matches
from typing import Any, NoReturn, TypeVar, get_args, get_type_hints

from ..errors import InputError
from ..spec import Spec

S = TypeVar("S", bound=Spec)
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def changed(spec: S, settings: list[str]) -> S:
    """`spec` with `settings`, such as "lr=1e-2", "model.n_layers=4" or "schedule=CosineRate", applied together.

    A field that holds a spec takes the name of another kind, at its defaults; kinds are set before their fields.
    Raises InputError for what is no setting, an unknown key, a value of another type, and sizes that do not fit.
    """
    pairs = [_pair(setting) for setting in settings]
    plain = spec.to_dict()
    for key, text in sorted(pairs, key=lambda pair: pair[0].count(".")):
        _put(type(spec), plain, key, text)
    try:
        return type(spec).from_dict(plain)
    except (ValueError, TypeError) as error:
        raise InputError(f"--set {' '.join(settings)}: {error}") from error


def _pair(setting: str) -> tuple[str, str]:
    key, equals, text = setting.partition("=")
    if not equals or not key or not text:
        raise InputError(f"--set takes key=value, such as lr=1e-2; got {setting!r}")
    return key.strip(), text.strip()


def _put(kind: type[Spec], plain: dict[str, Any], key: str, text: str) -> None:
    """Sets one key in the JSON form of a spec."""
    *path, last = key.split(".")
    inner = plain
    for name in path:
        if not isinstance(inner.get(name), dict):
            _refuse(plain, key)
        inner = inner[name]
    owner = Spec.kinds[inner["kind"]]
    if last not in {f.name for f in fields(owner)}:
        _refuse(plain, key)
    inner[last] = _value(get_type_hints(owner)[last], key, text)


def _refuse(plain: dict[str, Any], key: str) -> NoReturn:
    known = list(_keys_of(plain))
    same_end = [name for name in known if name.split(".")[-1] == key.split(".")[-1]]
    near = (same_end or get_close_matches(key, known, n=3) or [name for name in known if "." not in name])[:20]
    raise InputError(f"there is no setting {key!r}; near ones: {', '.join(near)}")


def _keys_of(plain: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in plain.items():
        if name != "kind":
            yield prefix + name
            if isinstance(value, dict):
                yield from _keys_of(value, f"{prefix}{name}.")


def _value(hint: Any, key: str, text: str) -> Any:
    """`text` as a value of one of the types that the field allows, in JSON form."""
    options = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        try:
            return _PARSERS[option](text) if option in _PARSERS else _defaults(_kinds(option)[text])
        except (ValueError, KeyError):
            continue
    words = " or ".join(_WORDS.get(option) or ", ".join(sorted(_kinds(option))) or str(option) for option in options)
    raise InputError(f"{key} takes {words}; got {text!r}")


def _kinds(option: Any) -> dict[str, type[Spec]]:
    """The kinds of spec that a field of this type may hold, families left out."""
    bases = {base for kind in Spec.kinds.values() for base in kind.__mro__[1:]}
    ends = {name: kind for name, kind in Spec.kinds.items() if kind not in bases}
    if option is Any:  # a task, which no base class marks
        return {name: kind for name, kind in ends.items() if {"vocab", "length"} <= {*dir(kind)}}
    return {name: kind for name, kind in ends.items() if isinstance(option, type) and issubclass(kind, option)}


def _defaults(kind: type[Spec]) -> dict[str, Any]:
    """The JSON form of a kind, of those fields that have defaults."""
    given = {f.name: f.default for f in fields(kind) if f.default is not MISSING}
    return {"kind": kind.__name__} | {k: v.to_dict() if isinstance(v, Spec) else v for k, v in given.items()}


def _whole(text: str) -> int:
    number = float(text)
    if number != int(number):
        raise ValueError(text)
    return int(number)


def _none(text: str) -> None:
    if text.lower() != "none":
        raise ValueError(text)


_PARSERS: dict[Any, Callable[[str], Any]] = {
    int: _whole, float: float, str: str, bool: lambda text: _TRUTH[text.lower()], type(None): _none,
}  # fmt: skip
_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", type(None): "none"}
