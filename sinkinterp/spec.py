"""Specs: immutable recipes, their round trip through JSON, and the short hash that names what they make."""

import hashlib
import json
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, TypeVar

from .errors import InputError

S = TypeVar("S", bound="Spec")


@dataclass(frozen=True)
class Dims:
    """The sizes that every part of a model may ask for."""

    d_model: int
    n_heads: int
    d_head: int
    n_ctx: int


@dataclass(frozen=True)
class Spec:
    """A recipe for one part. Subclassing registers the class under its name for `from_dict`."""

    kinds: ClassVar[dict[str, type["Spec"]]] = {}

    def __init_subclass__(cls) -> None:
        if cls.__name__ in Spec.kinds:
            raise TypeError(f"two specs are called {cls.__name__}")
        Spec.kinds[cls.__name__] = cls

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready copy, every nested part named by its class; a `later` field is left out at its default."""
        shown = [f for f in fields(self) if not _is_left_out(f, getattr(self, f.name))]
        plain = {f.name: float(x) if f.type is float else x for f in shown for x in (getattr(self, f.name),)}
        return {"kind": type(self).__name__} | {name: _plain(value) for name, value in plain.items()}

    @classmethod
    def from_dict(cls: type[S], plain: dict[str, Any]) -> S:
        """The inverse of `to_dict`. Raises InputError for a kind that this version does not know."""
        kind = Spec.kinds.get(plain.get("kind", ""))
        if kind is None or not issubclass(kind, cls):
            raise InputError(
                f"{plain.get('kind')!r} is no {cls.__name__} of this version of sinkinterp; "
                "use the version that wrote it"
            )
        unknown = plain.keys() - {"kind", *(f.name for f in fields(kind))}
        if unknown:
            raise InputError(f"{kind.__name__} has no {', '.join(sorted(unknown))}; use the version that wrote it")
        return kind(**{k: _value(v) for k, v in plain.items() if k != "kind"})

    def key(self) -> str:
        """Twelve hexadecimal digits that name this spec's checkpoints and results."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:12]


def later(default: Any) -> Any:
    """A field that a kind gained after it had keys: specs that leave it at its default keep theirs."""
    return field(default=default, metadata={"later": True})


def _is_left_out(f: Field, value: Any) -> bool:
    return "later" in f.metadata and value == f.default


def _plain(value: Any) -> Any:
    """What JSON can hold of a field: a spec as a dict, a tuple as a list."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.to_dict() if isinstance(value, Spec) else value


def _value(plain: Any) -> Any:
    """The inverse of `_plain`."""
    if isinstance(plain, list):
        return tuple(_value(item) for item in plain)
    return Spec.from_dict(plain) if isinstance(plain, dict) else plain


@dataclass(frozen=True)
class Part(Spec):
    """A spec of something with parameters."""

    def build(self, dims: Dims) -> Any:
        """The module, or parameter, that this spec describes, at the model's sizes."""
        raise NotImplementedError
