"""Names that are not there: what to write in place of an attribute, an argument, an option or a command.

`guesses.toml` is the table of what people write. Modules of a package are its attributes, imported on first use.
"""

import difflib
import inspect
import re
import sys
import tomllib
from ast import literal_eval
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial, update_wrapper, wraps
from importlib import import_module
from importlib.abc import MetaPathFinder
from operator import attrgetter
from pathlib import Path
from pkgutil import iter_modules, resolve_name
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, ParamSpec, TypeVar

from .errors import InputError

P, R = ParamSpec("P"), TypeVar("R")
T = TypeVar("T")
_ROOT = Path(__file__).parent
_SAME = (  # words for one argument or option, of which a function or a command has one
    ("layers", "layer", "include_layers"),
    ("heads", "head", "include_heads"),
    ("text", "tokens", "texts", "prompt", "prompts", "input_ids", "str_tokens", "dataset", "input", "file", "data"),
    ("dtype", "torch_dtype"),
    ("values", "activations"),
    ("edits", "edit", "intervention", "interventions"),
    ("corrupted", "corrupt", "corrupted_prompt"),
    ("clean", "clean_prompt"),
    ("instead", "wrong", "wrong_answer"),
    ("epsilon", "eps", "threshold"),
    ("path", "save", "out", "output", "o", "save_path", "filename", "outfile", "csv", "json", "html"),
    ("device_map", "device"),
    ("model", "source", "attention", "attentions", "patterns", "cache", "m", "report"),
)


@cache
def _words(kind: str) -> dict[str, str]:
    """A table of guesses.toml by the word that people write.

    "same": the public name that it means, or one of another library. "argument": what `word=value` means, empty where
    nothing is to be said. "instead": what to write; `place:word` is for one function or kind of object.
    """
    table = tomllib.loads((_ROOT / "guesses.toml").read_text(encoding="utf-8"))[kind]
    return {word: meant for words, meant in table.items() for word in words.split()}


def nearest(name: Any, names: Iterable[str]) -> str:
    """A question for an error message that names what was probably meant; empty where nothing is near."""
    near = difflib.get_close_matches(str(name), list(names), 1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def choice(name: Any, table: Mapping[str, T], kind: str) -> T:
    """The value of that name in a table. Raises InputError, which says what is near, for another name."""
    if not isinstance(name, str) or name not in table:
        raise InputError(f"there is no {kind} {name!r:.40}{nearest(name, table)}; choose from {', '.join(table)}")
    return table[name]


def fix_of(word: Any, place: str = "", names: Iterable[str] = ()) -> str:
    """What to write in place of a word, else the nearest of `names`, as the end of a message; empty without either."""
    fix = _words("instead").get(f"{place}:{word}") or _words("instead").get(str(word))
    return f"; {fix}" if fix else nearest(word, names)


def synonym(word: str, known: Iterable[str]) -> str:
    """The one of the known arguments, options or commands that a word means; the word itself if it means none."""
    names = [*known]
    if (named := _words("same").get(f"{_ROOT.name}:{word}")) in names:
        return named
    meant = (each for words in _SAME if word in words for each in words if each in names)
    return word if word in names else next(meant, word)


def home_of(name: str) -> tuple[str, bool]:
    """The module of a function, class or constant of this package, and whether it is public; empty without one."""
    defined = re.compile(rf"^(def |class )?{re.escape(name)}\b *[(:=\[]", re.M)
    for path in sorted(_ROOT.rglob("*.py")):
        inside = path.relative_to(_ROOT)
        if inside.parts[0] != "cli" and defined.search(path.read_text(encoding="utf-8")):
            is_public = f'"{name}"' in (path.parent / "__init__.py").read_text(encoding="utf-8")
            home = inside.parent if is_public else inside.with_suffix("")
            return ".".join((_ROOT.name, *home.parts)), is_public
    return "", False


def keywords(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which raises InputError for arguments that it does not take, and says what to write instead.

    The words of `_SAME` mean one argument, such as `layer` and `layers`. Some values of foreign arguments do, too.
    """
    known = inspect.signature(function).parameters

    def meant_by(given: Mapping[str, Any]) -> dict[str, Any]:
        foreign = {word: f"{word}={value!r:.20}" for word, value in given.items() if word not in known}
        meant = {word: pair for word, text in foreign.items() if (pair := _words("argument").get(text)) is not None}
        free = [word for word in known if word not in given]
        kept = {synonym(word, [word] if word in known else free): given[word] for word in given if word not in meant}
        pairs = (pair.split("=") for pair in meant.values() if pair)
        return kept | {word: literal_eval(value) for word, value in pairs if word in known}

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        named: Any = meant_by(kwargs)
        given = _with_tokenizer(args, named) if "model" in known and "tokenizer" not in known else args
        _check_fit(function, given, named)
        return function(*given, **named)

    return checked


def _with_tokenizer(args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments without a tokenizer; the model, which is first, is loaded with it."""
    tokenizers = [value for value in args if callable(getattr(value, "convert_ids_to_tokens", None))]
    tokenizer = named.pop("tokenizer", None) if not tokenizers else tokenizers[0]
    if tokenizer is None:
        return args
    model, *others = [value for value in args if value is not tokenizer] or [named.pop("model", None)]
    return (import_module(f"{_ROOT.name}.backends.load").load(model, tokenizer), *others)


def _check_fit(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    signature, name = inspect.signature(function), function.__name__
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        names = [word for word in signature.parameters if word != "self"]
        unknown = next((word for word in kwargs if word not in signature.parameters), "")
        fix = fix_of(unknown, name, names) or fix_of("", name)
        known = "" if fix.startswith(";") else f"; it takes {', '.join(names) or 'nothing'}"
        raise InputError(f"{name}: {error}{known}{fix}") from None


class Told(type):
    """The type of classes that raise InputError, which names the fields, for arguments that they do not take."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(*args, **kwargs)
        except TypeError:
            _check_fit(cls, args, kwargs)
            raise

    @property
    def __signature__(cls) -> inspect.Signature:
        """The fields of a class, which help and editors show."""
        signature = inspect.signature(cls.__init__)  # type: ignore[misc]
        return signature.replace(parameters=[*signature.parameters.values()][1:])


class _Method:
    """A method of an object. Without brackets it says how to call it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __get__(self, thing: Any, owner: type | None = None) -> Any:
        return self._function if thing is None else Bound(self._function, thing)


class Bound(partial[Any]):
    """A function with the object that it is called of."""

    def __init__(self, function: Callable[..., Any], thing: Any) -> None:
        update_wrapper(self, function)

    def __repr__(self) -> str:
        path = f"{self.args[0].kind}.{self.func.__name__}"
        return f"{path} is a method; write {path}(...)"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"{self!r}.{name}", name=name)


class Answering:
    """The base of objects that say what to write in place of an attribute that they do not have.

    Words of the table mean an attribute of theirs. Public functions that take such an object first are its methods too.
    """

    kind: ClassVar[str]  # what messages and the table call them
    role: ClassVar[str] = "what"  # the first parameter of the public functions that are its methods
    parts: ClassVar[tuple[str, ...]] = ()  # whose attributes are its own

    def __init_subclass__(cls) -> None:
        for name in dir(cls):
            function = inspect.getattr_static(cls, name)
            if name[0] != "_" and inspect.isfunction(function) and function.__module__.startswith(_ROOT.name):
                setattr(cls, name, _Method(function))

    if not TYPE_CHECKING:  # a type checker knows the attributes that there are

        def __getattr__(self, name: str) -> Any:
            word = f"{self.kind}:{name}"
            if word in _words("same"):
                return attrgetter(_words("same")[word])(self)
            if name[0] != "_" and word not in _words("instead"):
                for part in self.parts:
                    if hasattr(vars(self).get(part), name):
                        return getattr(vars(self)[part], name)
                function = _public(name)
                if function and next(iter(inspect.signature(function).parameters)) == self.role:
                    return Bound(function, self)
            inside = f"; write {self.kind}.model.{name}" if hasattr(vars(self).get("model"), name) else ""
            names = [known for known in dir(self) if not known.startswith("_")]
            known = f"; it has {', '.join(names)}" if len(names) < 16 else ""
            fix = fix_of(name, self.kind) or inside or fix_of("", self.kind) or nearest(name, names) or known
            raise AttributeError(f"a {self.kind} has no attribute {name!r}{fix}", name=name)  # no guess of Python's


def _public(name: str) -> Callable[..., Any] | None:
    """The public function of a name, or of a word that means one."""
    package = sys.modules[_ROOT.name]
    meant = _words("same").get(name, name)
    function = getattr(package, meant) if meant in vars(package)["__all__"] else None
    return function if inspect.isfunction(function) else None


class Package(ModuleType):
    """A package or module of ours. Its modules are attributes, imported on first use: importing torch takes seconds."""

    def __getattr__(self, name: str) -> Any:
        names = () if name.startswith("_") else dir(self)
        if name in names and name not in vars(self).get("__all__", ()):
            return import_module(f"{self.__name__}.{name}")
        if name in _words("same"):
            meant = _words("same")[name]
            return resolve_name(meant if "." in meant else f"{_ROOT.name}.{meant}")
        fix = "" if name.startswith("_") else fix_of(name)
        home, is_public = ("", False) if fix or name.startswith("_") else home_of(name)
        if is_public and self.__name__ == _ROOT.name:
            return getattr(import_module(home), name)
        fix = fix or (f"; write from {home} import {name}" if home else nearest(name, names))
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}{fix}", name=name)

    def __dir__(self) -> list[str]:
        modules = [x.name for x in iter_modules(vars(self).get("__path__", ())) if not x.name.startswith("_")]
        return sorted({*modules, *vars(self).get("__all__", () if modules else vars(self))})

    def __setattr__(self, name: str, value: Any) -> None:  # also called by every import of a module in a package
        if type(value) is ModuleType:
            value.__class__ = Package
        super().__setattr__(name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        name = self.__name__.split(".", 1)[-1]
        inside = name.split(".")[-1]
        known = f"; write si.{name}.{inside}(...)" if hasattr(self, inside) else f"; dir(si.{name}) lists what it has"
        raise InputError(f"si.{name} is a module{fix_of(name) or known}")


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
