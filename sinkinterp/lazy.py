"""Modules of a package as its attributes, imported when they are first used: importing torch takes seconds."""

from collections.abc import Callable, Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

Door = tuple[Callable[[str], Any], Callable[[], list[str]]]


def submodules_of(package: str, path: list[str], elsewhere: Mapping[str, str] = {}) -> Door:
    """The `__getattr__` and `__dir__` of a package whose modules are its attributes.

    elsewhere: by name, the full name of a module of another package that users also find here.
    """
    names = sorted({module.name for module in iter_modules(path) if not module.name.startswith("_")} | {*elsewhere})

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(names)}")
        return import_module(elsewhere.get(name, f"{package}.{name}"))

    return get, lambda: names
