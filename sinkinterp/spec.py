"""Specs: immutable recipes, their round trip through JSON, the hash that names their results, `--set key=value`."""

import hashlib
import json
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, TypeVar, dataclass_transform, get_args, get_type_hints

from .checks import Checked, InputError, each_once, refusal

S = TypeVar("S", bound="Spec")
Limits = Mapping[str, float | tuple[float, float] | Mapping[str, float]]
ABOVE_ZERO: Mapping[str, float] = {"above": 0}
INSIDE: Mapping[str, float] = {"above": 0, "below": 1}


@dataclass(frozen=True)
class Dims:
    """The sizes that every part of a model may ask for."""

    d_model: int
    n_heads: int
    d_head: int
    n_ctx: int


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
@dataclass(frozen=True)
class Spec(Checked):
    """A recipe for one part. Every subclass is a frozen dataclass, and is known by its name, so `from_dict` finds it.

    limits: what a field of numbers is at least, or from what to what it is, or as in `finite_number`, by its name.
    """

    limits: ClassVar[Limits] = {}
    kinds: ClassVar[dict[str, type["Spec"]]] = {}

    def __init_subclass__(cls) -> None:
        if cls.__name__ in Spec.kinds:
            raise TypeError(f"two specs are called {cls.__name__}")
        Spec.kinds[cls.__name__] = dataclass(frozen=True)(cls)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready copy, with the name of the class as "kind". `added_later` fields are absent at their default."""
        plain: dict[str, Any] = {"kind": type(self).__name__}
        for f in fields(self):
            value = getattr(self, f.name)
            if value != f.default or "added_later" not in f.metadata:
                plain[f.name] = _to_json(float(value) if f.type is float else value)  # 1 and 1.0 are one value
        return plain

    @classmethod
    def from_dict(cls: type[S], plain: dict[str, Any]) -> S:
        """The inverse of `to_dict`. Raises InputError for a kind or a field that this version does not know."""
        named = plain.get("kind") if isinstance(plain, dict) else plain
        kind = Spec.kinds.get(str(named))
        if kind is None or not issubclass(kind, cls) or plain == named:
            what = f"{named!r:.40} is not a {cls.__name__} of this version of sinkinterp"
            raise InputError(what)
        unknown = plain.keys() - {"kind", *(f.name for f in fields(kind))}
        absent = [f.name for f in fields(kind) if f.name not in plain and f.default is MISSING]
        for verb, names in {"has no": sorted(unknown), "lacks": absent}.items():
            if names:
                raise InputError(f"{kind.__name__} {verb} {', '.join(names)}")
        return kind(**{name: _from_json(value) for name, value in plain.items() if name != "kind"})

    def key(self) -> str:
        """Twelve hexadecimal digits that name this spec's checkpoints and results."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:12]


def added_later(default: Any, kw_only: bool = False) -> Any:
    """A field that a class gained when its specs already had keys. At its default it does not change the key."""
    return field(default=default, kw_only=kw_only, metadata={"added_later": True})


def _to_json(value: Any) -> Any:
    """Returns what JSON can hold of a field: a spec as a dict, a tuple as a list."""
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    return value.to_dict() if isinstance(value, Spec) else value


def _from_json(plain: Any) -> Any:
    """The inverse of `_to_json`."""
    if isinstance(plain, list):
        return tuple(_from_json(item) for item in plain)
    return Spec.from_dict(plain) if isinstance(plain, dict) else plain


class Part(Spec):
    """A spec of a part of a model."""

    def build(self, dims: Dims) -> Any:
        """The module or parameter that this spec describes, at the model's sizes; itself if it has no parameters."""
        return self


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
    if key == "seed":
        raise InputError("the seed is an argument of its own, seed=..., and not a setting")
    inner: dict[str, Any] = {}
    value: Any = tree
    for name in key.split("."):
        kind = Spec.kinds[value["kind"]] if isinstance(value, dict) else Spec
        if name not in (known := [f.name for f in fields(kind) if f.name != "seed"]):
            raise InputError(f"there is no setting {key!r}; {kind.__name__} has {', '.join(known) or 'none'}")
        inner, value = value, value.get(name)
    inner[name] = _value(get_type_hints(kind)[name], key, text)


def flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A spec's JSON form as one level of dotted keys."""
    level: dict[str, Any] = {}
    for name, value in nested.items():
        level |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return level


def _value(hint: Any, key: str, text: str) -> Any:
    """`text` as a value of the first of the field's types that can read it, in JSON form."""
    options = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        with suppress(ValueError, KeyError):
            return _PARSERS[option](text) if option in _PARSERS else defaults(_kinds(option)[text])
    names = [_NAMES.get(option) or ", ".join(sorted(_kinds(option))) or str(option) for option in options]
    raise InputError(f"{key} takes {' or '.join(names)}; got {text!r:.60}")


def _kinds(option: Any) -> dict[str, type[Spec]]:
    """The kinds of spec that a field of this type may hold, by name, without base classes."""
    bases = {base for kind in Spec.kinds.values() for base in kind.__mro__[1:]}
    leaves = {name: kind for name, kind in Spec.kinds.items() if kind not in bases}
    if option is Any:  # the type of a recipe's data, which has no common base class
        return {name: kind for name, kind in leaves.items() if {"vocab", "length"} <= {*dir(kind)}}
    return {name: kind for name, kind in leaves.items() if isinstance(option, type) and issubclass(kind, option)}


def defaults(kind: type[Spec]) -> dict[str, Any]:
    """The JSON form of a kind, with the fields that have defaults."""
    values = {f.name: f.default for f in fields(kind) if f.default is not MISSING}
    return {"kind": kind.__name__} | {k: v.to_dict() if isinstance(v, Spec) else v for k, v in values.items()}


_PARSERS: dict[Any, Callable[[str], Any]] = {
    int: int,
    float: float,
    str: str,
    bool: lambda text: {"true": True, "false": False}[text.lower()],
    type(None): lambda text: {"none": None}[text.lower()],
}
_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", type(None): "none"}
