"""Attributes that are not there: objects and modules that say what to write in place of them.

Modules of a package are its attributes, imported on first use.
"""

import inspect
import re
import sys
from collections.abc import Callable
from functools import partial, update_wrapper
from importlib import import_module
from importlib.abc import MetaPathFinder
from operator import attrgetter
from pkgutil import iter_modules, resolve_name
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from . import guesses
from .arguments import Function, refuse_uses
from .checks import InputError
from .guesses import ROOT, Unknown, found_anywhere


class _Method:
    """A method of an object. Without brackets it says how to call it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __get__(self, thing: Any, owner: type | None = None) -> Any:
        return self._function if thing is None else Bound(self._function, thing)


class Bound(partial[Any]):
    """A method with its object. One of a value that needs no argument stands for its answer."""

    def __init__(self, function: Callable[..., Any], thing: Any) -> None:
        update_wrapper(self, function)

    @property
    def answers(self) -> bool:
        """Whether it is a method of a value that needs no argument."""
        _, *given = inspect.signature(self.func).parameters.values()
        needed = [each for each in given if each.default is each.empty and each.kind < each.VAR_POSITIONAL]
        return self.args[0].is_value and not needed

    def __repr__(self) -> str:
        path = f"{self.args[0].kind}.{self.func.__name__}"
        return repr(self()) if self.answers else f"{path} is a method; write {path}(...)"

    def __str__(self) -> str:
        return str(self()) if self.answers else repr(self)

    def __array__(self, *given: Any, **how: Any) -> Any:
        return import_module("numpy").asarray(self(), *given, **how)

    def __eq__(self, other: object) -> bool:
        return self is other or bool(self.answers and self() == _answer(other))

    __hash__ = object.__hash__

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name[0] != "_" and self.answers:
                return getattr(self(), name)
            if name[0] != "_" and isinstance(self.func, Function):
                return Bound(getattr(self.func, name), *self.args)
            raise AttributeError(f"{self!r}.{name}", name=name)


def _answer(value: Any) -> Any:
    """What a method that stands for its answer answers; anything else itself."""
    return value() if isinstance(value, Bound) and value.answers else value


_NUMBERS = "float format round getitem lt le gt ge add radd sub rsub mul rmul truediv"
for _name in _NUMBERS.split():
    setattr(Bound, f"__{_name}__", lambda self, *x, _name=f"__{_name}__": getattr(self(), _name)(*map(_answer, x)))


class Answering:
    """The base of objects that say what to write in place of an attribute that they do not have.

    Words of the table mean an attribute of theirs. Public functions that take such an object first are its methods too.
    """

    kind: ClassVar[str]  # what messages and the table call them
    is_value: ClassVar[bool] = False  # whether a method without arguments changes nothing and costs little
    role: ClassVar[str] = "what"  # the first parameter of the public functions that are its methods
    parts: ClassVar[tuple[str, ...]] = ()  # whose attributes are its own

    def __init_subclass__(cls) -> None:
        refuse_uses(cls, "a number", "indexed", "called")
        for name in dir(cls):
            function = inspect.getattr_static(cls, name)
            is_ours = isinstance(function, FunctionType | Function) and function.__module__.startswith(ROOT.name)
            if is_ours and name[0] != "_":
                setattr(cls, name, _Method(function))

    if not TYPE_CHECKING:  # a type checker knows the attributes that there are

        def __getattr__(self, name: str) -> Any:
            word = f"{self.kind}:{name}"
            if word in guesses.words_of("same"):
                return attrgetter(guesses.words_of("same")[word])(self)
            if name[0] != "_" and word not in guesses.words_of("instead"):
                for part in filter(None, map(vars(self).get, self.parts)):
                    if hasattr(part, meant := guesses.synonym(name, vars(part))):
                        return getattr(part, meant)
                if function := _public(name, self.role):
                    return Bound(function, self)
            raise guesses.no_attribute(self, self.kind, name)


def _public(name: str, role: str) -> Callable[..., Any] | None:
    """The function of `si` by this name that takes an object of this role first, or makes edits."""
    function: Any = getattr(sys.modules[ROOT.name], name, None)
    is_function = isinstance(function, FunctionType | Function | partial)
    first = next(iter(inspect.signature(function).parameters.values()), None) if is_function else None
    makes_edits = role == "model" and first is not None and first.kind is first.VAR_POSITIONAL
    names = (role, "before") if role == "model" else (role,)  # two models are compared
    return function if first is not None and (first.name in names or makes_edits) else None


def _function_of(value: Any, name: str) -> Any:
    """What a name gives: the value, or of an edit whose name is written in small letters, a function; see `edited`."""
    is_edit = name.islower() and getattr(value, "__module__", "").startswith(f"{ROOT.name}.interventions.")
    return import_module(f"{ROOT.name}.measurement.tabulate").edited(value) if is_edit else value


class Package(ModuleType):
    """A package or module of ours. Its modules are attributes, imported on first use: importing torch takes seconds."""

    def __getattr__(self, name: str) -> Any:
        if name[0] == "_":  # imports ask for some of these
            raise Unknown(f"module {self.__name__!r} has no attribute {name!r}", name)
        names = dir(self)
        if name in names and name not in vars(self).get("__all__", ()):
            return import_module(f"{self.__name__}.{name}")
        place = "plot_" if self.__name__ == f"{ROOT.name}.plots" else ""
        is_list = name in guesses.LISTING
        in_own = f"list_{self.__name__.split('.')[-1]}" if is_list else f"{place}{name}"
        word = guesses.meant_by_table(in_own) or guesses.meant_by_table(name)
        is_told = name in guesses.words_of("instead") and name not in guesses.words_of("same")
        if word and not is_told and (word != name or word in guesses.words_of("same")):
            meant = guesses.words_of("same").get(word, word)
            meant = meant if "." in meant else f"{ROOT.name}.{meant}"
            return _function_of(resolve_name(meant), name)
        fix = f"; write si.{name}" if name in guesses.public_functions() else guesses.said_of(name)
        edit = "" if fix or not name.islower() else guesses.named_in(name, guesses.public_edits())
        if edit and edit.lower() != name:
            return _function_of(resolve_name(f"{ROOT.name}.interventions.{edit}"), name)
        if not fix and (found := found_anywhere(name)) is not None:
            return found
        if re.fullmatch(r"(tab|fig|table|figure)_?\d+", name):
            fix = fix or f"; write si.reproduce({name!r})"
        raise Unknown(f"module {self.__name__!r} has no attribute {name!r}", name, lambda: fix or self._fix_of(name))

    def _fix_of(self, name: str) -> str:
        """What to write in place of an attribute that is not there."""
        names = dir(self)
        near = guesses.nearest(name, names, 0.85) or guesses.fix_of(name) or guesses.nearest(name, names)
        return near or "; si.measure(model, text) measures, help(si) says more"

    def __dir__(self) -> list[str]:
        modules = [x.name for x in iter_modules(vars(self).get("__path__", ())) if not x.name.startswith("_")]
        return sorted({*modules, *vars(self).get("__all__", () if modules else vars(self))})

    def __setattr__(self, name: str, value: Any) -> None:  # also called by every import of a module in a package
        if type(value) is ModuleType:
            value.__class__ = Package
        super().__setattr__(name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = self.__name__.split(".", 1)[-1]
        if meant := guesses.words_of("same").get(f"{name}()"):
            return resolve_name(meant)(*args, **kwargs)
        inside = name.split(".")[-1]
        known = f"; write si.{name}.{inside}(...)" if hasattr(self, inside) else f"; dir(si.{name}) lists what it has"
        raise InputError(f"si.{name} is a module{guesses.fix_of(name) or known}")


class _Imports(MetaPathFinder):
    """Asked last for a module. Of ours, it raises ImportError, which says what to write for a name."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        parent, _, name = fullname.rpartition(".")
        package = sys.modules.get(parent)
        if isinstance(package, Package) and not name.startswith("_"):
            try:
                getattr(package, name)
            except AttributeError as error:
                raise ImportError(str(error), name=fullname) from None


sys.meta_path.append(_Imports())
