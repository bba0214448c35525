"""Specs: immutable recipes, their round trip through JSON, and the short hash that names their results."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, TypeVar

from .checks import InputError, check_fields
from .guesses import Told

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


@dataclass(frozen=True)
class Spec(metaclass=Told):
    """A recipe for one part. Every subclass is registered under its name, so that `from_dict` finds it.

    limits: what a field of numbers is at least, or from what to what it is, or as in `finite_number`, by its name.
    """

    limits: ClassVar[Limits] = {}
    kinds: ClassVar[dict[str, type["Spec"]]] = {}

    def __init_subclass__(cls) -> None:
        if cls.__name__ in Spec.kinds:
            raise TypeError(f"two specs are called {cls.__name__}")
        Spec.kinds[cls.__name__] = cls

    def __post_init__(self) -> None:
        check_fields(self)

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
        if not isinstance(plain, dict) or not isinstance(plain.get("kind", ""), str):
            raise InputError(f"a {cls.__name__} is read from a dictionary with its kind; got a {type(plain).__name__}")
        kind = Spec.kinds.get(plain.get("kind", ""))
        if kind is None or not issubclass(kind, cls):
            raise InputError(
                f"{plain.get('kind')!r} is not a {cls.__name__} of this version of sinkinterp; "
                "use the version that wrote it"
            )
        unknown = plain.keys() - {"kind", *(f.name for f in fields(kind))}
        absent = [f.name for f in fields(kind) if f.name not in plain and f.default is MISSING]
        for verb, names in {"has no": sorted(unknown), "lacks": absent}.items():
            if names:
                raise InputError(f"{kind.__name__} {verb} {', '.join(names)}; use the version that wrote it")
        return kind(**{name: _from_json(value) for name, value in plain.items() if name != "kind"})

    def key(self) -> str:
        """Twelve hexadecimal digits that name this spec's checkpoints and results."""
        return key_of(self.to_dict())


def key_of(plain: dict[str, Any]) -> str:
    """The key of the spec that `to_dict` made this of."""
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:12]


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


@dataclass(frozen=True)
class Part(Spec):
    """A spec of something with parameters."""

    def build(self, dims: Dims) -> Any:
        """The module or parameter that this spec describes, at the model's sizes."""
        raise NotImplementedError
