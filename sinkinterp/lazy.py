"""Modules of a package as its attributes, imported when they are first used: importing torch takes seconds."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, NoReturn

from .errors import InputError

_MEANT = {  # by people who call a package
    "attention": "si.attention_map(model, text) draws the attention of any head",
    "report": "si.measure(model, text) returns a report",
    "train": "si.trained(si.Recipe()) trains a model",
}
Door = tuple[Callable[[str], Any], Callable[[], list[str]]]


def submodules_of(package: str, path: list[str], elsewhere: Mapping[str, str] = {}) -> Door:
    """The `__getattr__` and `__dir__` of a package whose modules are its attributes.

    elsewhere: by name, the full name of a module of another package that users also find here.
    """
    sys.modules[package].__class__ = _Package
    names = sorted({module.name for module in iter_modules(path) if not module.name.startswith("_")} | {*elsewhere})

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(names)}")
        return import_module(elsewhere.get(name, f"{package}.{name}"))

    return get, lambda: names


class _Package(ModuleType):
    """A package that says so where it is called."""

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        name = self.__name__.split(".", 1)[-1]
        raise InputError(f"si.{name} is a package; {_MEANT.get(name, f'dir(si.{name}) lists what is in it')}")
