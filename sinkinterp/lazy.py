"""Modules of a package as its attributes, imported when they are first used: importing torch takes seconds."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, NoReturn

from .checks import fix_of
from .errors import InputError

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
        module = import_module(elsewhere.get(name, f"{package}.{name}"))
        if type(module) is ModuleType:
            module.__class__ = _Package
        return module

    return get, lambda: names


class _Package(ModuleType):
    """A package or module that says what to write where it is called."""

    def __setattr__(self, name: str, value: Any) -> None:  # also called by every import of a module in a package
        if type(value) is ModuleType:
            value.__class__ = _Package
        super().__setattr__(name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        name = self.__name__.split(".", 1)[-1]
        inside = name.split(".")[-1]
        known = f"; write si.{name}.{inside}(...)" if hasattr(self, inside) else f"; dir(si.{name}) lists what it has"
        raise InputError(f"si.{name} is a module{fix_of(name) or known}")
