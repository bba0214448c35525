"""What people give: the error that means a mistake in it, checks that raise it, and what to write in its place.

`guesses.toml` is the table of what people write. Modules of a package are its attributes, imported on first use.
"""

import difflib
import inspect
import math
import operator
import os
import re
import sys
import textwrap
import tomllib
from ast import literal_eval
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import Field, FrozenInstanceError, dataclass, field, fields
from functools import cache, lru_cache, partial, update_wrapper, wraps
from importlib import import_module
from importlib.abc import MetaPathFinder
from operator import attrgetter
from pathlib import Path
from pkgutil import iter_modules, resolve_name
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, ParamSpec, TypeVar, dataclass_transform

P = ParamSpec("P")
READABLE = "change its permissions, such as chmod u+rX"
_LONGEST_WORD, _LONGEST = 300, 4000  # characters of a message that are shown whole


class InputError(ValueError):
    """Something that the user gave cannot be used. The message is one line that says what, why, and the fix.

    A name or a path in it may hold line ends, which become spaces, and thousands of letters, which are cut.
    """

    def __init__(self, message: str) -> None:
        parts = message.replace("\n", " ").split(" ")
        words = " ".join(_cut(part, 100) if len(part) >= _LONGEST_WORD else part for part in parts)
        super().__init__(_cut(words, 1500) if len(words) > _LONGEST else words)


class Unknown(AttributeError):
    """An attribute that is not there. What to write in its place is looked for when the message is read."""

    def __init__(self, what: str, name: str, fix: Callable[[], str] = str) -> None:
        super().__init__(what, name=name)
        self._fix = fix

    def __str__(self) -> str:
        return f"{self.args[0]}{self._fix()}"

    def __reduce__(self) -> Any:
        return AttributeError, (str(self),)  # another process gets the message


@contextmanager
def refusal(what: str, fix: str = "", of: type[Exception] | tuple[type[Exception], ...] = Exception) -> Iterator[None]:
    """Makes an error of the block, of these types, an InputError: what failed, why, and the fix.

    An InputError passes as it is, unless `of` names that type. A file that may not be read is called that.
    """
    try:
        yield
    except of as error:
        if isinstance(error, InputError) and not (isinstance(of, tuple) and InputError in of):
            raise
        if isinstance(error, PermissionError) and not what.startswith("cannot write"):
            what, fix = f"cannot read {error.filename}" if error.filename else what, READABLE
        raise InputError(f"{what}: {reason_of(error)}{f'; {fix}' if fix else ''}") from error


def refusing(check: Callable[P, Iterator[str]]) -> Callable[P, None]:
    """The check of something that a user gave, which yields its faults. It raises InputError for the first of them."""

    @wraps(check)
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        for fault in check(*args, **kwargs):
            raise InputError(fault)

    return checked


def reason_of(error: Exception) -> str:
    """Why something failed, in one line: what the system says, or the beginning of the message, or the error's type."""
    if isinstance(error, InputError):
        return str(error)
    whole = (getattr(error, "strerror", None) or str(error)).partition("\nCheck your internet connection")[0]
    said = textwrap.shorten(whole, 300).rstrip(".")
    return said if " " in said else f"{type(error).__name__} {said}".strip()


def extra(module: str, fix: str) -> ModuleType:
    """A package that may be absent, imported. Raises InputError where it is."""
    try:
        return import_module(module)
    except ImportError as error:
        raise InputError(f"{module} is not installed; {fix}") from error


def _cut(text: str, kept: int) -> str:
    """The beginning and the end of a text."""
    return f"{text[:kept]}...{text[-kept // 2 :]}"


LARGEST = 2**63 - 1


def whole_number(value: Any, what: str, least: int | None = None, most: int | None = None) -> int:
    """The value as Python's int. Raises InputError, which calls it `what`, for anything else and outside the limits.

    True, 1.0 and "1" are not whole numbers. Those of numpy and torch are.
    """
    number = _index(value)
    if number is None or (least is not None and number < least) or (most is not None and number > most):
        got = _shown(value if number is None else number)
        raise InputError(f"{what} is a whole number{_limits(least, most)}; got {got}")
    return number


def whole_numbers(values: Any, what: str, least: int | None = None, most: int | None = None) -> list[int]:
    """The values as Python's ints; one whole number stands for itself.

    Raises InputError unless there is one or more, all of them whole and within the limits.
    """
    try:
        given = [values] if is_whole(values) else [] if isinstance(values, str | bytes) else [*values]
    except TypeError:
        given = []
    if not given:
        raise InputError(f"{what} are one or more whole numbers, such as (1, 4); got {_shown(values)}")
    return [whole_number(value, f"one of {what}", least, most) for value in given]


def different_numbers(values: Any, what: str, least: int | None = None, most: int | None = None) -> list[int]:
    """As `whole_numbers`. Raises InputError also for a number that is given twice."""
    numbers = whole_numbers(values, what, least, most)
    each_once(numbers, f"one of {what}")
    return numbers


def finite_number(value: Any, what: str, **limits: float) -> float:
    """The value as Python's float. Raises InputError, which calls it `what`, for anything else and outside the limits.

    limits: of `above`, `least`, `most` and `below`.
    """
    try:
        number = math.nan if isinstance(value, str | bytes | bool) else float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or not all(_WITHIN[kind](number, limit) for kind, limit in limits.items()):
        span = " and ".join(f"{_WORDS.get(kind, kind)} {limit:g}" for kind, limit in limits.items())
        raise InputError(f"{what} is a finite number{f' {span}' if limits else ''}; got {_shown(value)}")
    return number


_WITHIN = {"above": operator.gt, "least": operator.ge, "most": operator.le, "below": operator.lt}
_WORDS = {"least": "of at least", "most": "at most"}


def check_count(values: Sized, what: str, least: int = 1) -> None:
    """Raises InputError, which calls the values `what`, unless there are so many of them."""
    if len(values) < least:
        raise InputError(f"{what}: give at least {least}; got {len(values)}")


def each_once(values: Sequence[Any], what: str) -> None:
    """Raises InputError, which calls one of the values `what`, where it is given twice."""
    twice = [value for value, times in Counter(values).items() if times > 1]
    if twice:
        raise InputError(f"{what} is given twice: {twice[0]}; give each once")


def both_or_none(first: Any, second: Any, names: str, others: str = "") -> None:
    """Raises InputError where one of two values that go together is None, and the other is not."""
    if (first is None) != (second is None):
        raise InputError(f"give {names} together{others}, or none of them")


def check_context(length: int, most: int | None, model: str, fix: str) -> None:
    """Raises InputError where a text of `length` tokens is longer than the model takes: `most`, or None for any."""
    if most is not None and length > most:
        raise InputError(f"{length} tokens exceed {model}'s context of {most}; {fix}")


def instance_of(value: Any, kinds: Any, what: str) -> Any:
    """The value. Raises InputError, which begins with `what`, unless it is of one of these types."""
    if not isinstance(value, kinds):
        raise InputError(f"{what}; got {_shown(value)}")
    return value


def unicode_text(text: str, what: str) -> str:
    """The text itself. Raises InputError, which calls it `what`, where UTF-8 cannot write it.

    JSON writes half of a surrogate pair as \\ud800. Bytes of a command line that are not in its encoding are one, too.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        fix = "save it as UTF-8; for a command line that is, set PYTHONUTF8=1"
        raise InputError(f"{what} is not Unicode: its letter {error.start} is {text[error.start]!a}; {fix}") from None
    return text


def accepting(function: Any, what: str, *arguments: Any, **named: Any) -> Any:
    """The function itself. Raises InputError, which calls it `what`, unless it can be called with these arguments."""
    if not callable(function):
        raise InputError(f"{what} is a function; got {_shown(function)}")
    try:
        inspect.signature(function).bind(*arguments, **named)
    except TypeError as error:
        raise InputError(f"{what} cannot be called with {len(arguments) + len(named)} arguments: {error}") from None
    except ValueError:  # a function of C, whose arguments are not known
        pass
    return function


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number; True and False are not."""
    return _index(value) is not None


def check_fields(value: Any) -> None:
    """Checks the fields of a frozen dataclass by their types: whole numbers of 64 bits, finite numbers, our classes.

    `limits` of its classes say what a number is at least, or from what to what, or are those of `finite_number`. Raises
    InputError for a field that holds anything else. Fields of other types are not checked.
    """
    made = type(value)
    if made not in _CHECKED:
        _CHECKED[made] = _checked_fields(made)
    for each, span, kinds in _CHECKED[made]:
        held, name = getattr(value, each.name), f"{each.name} of {made.__name__}"
        if each.type is int:
            number = whole_number(held, name, span.get("least", -LARGEST), span.get("most", LARGEST))
            object.__setattr__(value, each.name, number)
        elif each.type is float:
            object.__setattr__(value, each.name, finite_number(held, name, **span))
        elif not isinstance(held, kinds):
            fix = said_of(type(held).__name__, made.__name__)
            raise InputError(f"{name} is of type {' or '.join(k.__name__ for k in kinds)}{fix}; got {_shown(held)}")


_CHECKED: dict[type, list[tuple[Field[Any], Any, Any]]] = {}  # by class; torch.compile warns of a `functools.cache`


def _checked_fields(made: Any) -> list[tuple[Field[Any], Any, Any]]:
    """The fields of a dataclass that `check_fields` checks: each with its limits, and the classes that it takes."""
    limits, checked = ChainMap(*(vars(kind).get("limits", {}) for kind in made.__mro__)), []
    for each in fields(made):
        kinds = getattr(each.type, "__args__", (each.type,))  # of int | None, both
        are_types = all(isinstance(kind, type) for kind in kinds)
        is_ours = are_types and any(kind.__module__.startswith(f"{__package__}.") for kind in kinds)
        if each.type in (int, float) or is_ours:
            checked.append((each, _span(limits.get(each.name, {})), kinds))
    return checked


def _span(limit: Any) -> Any:
    """The limits of a field by their names in `finite_number`."""
    if isinstance(limit, tuple):
        return {"least": limit[0], "most": limit[1]}
    return limit if isinstance(limit, Mapping) else {"least": limit}


def check_memory(n_bytes: int, what: str, fix: str) -> None:
    """Raises InputError where `what` takes more bytes than the machine has memory."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # the system does not tell
        return
    if n_bytes > memory:
        raise InputError(f"{what} take about {n_bytes / 1e9:,.0f} GB and this machine has {memory / 1e9:.0f} GB; {fix}")


def _index(value: Any) -> int | None:
    """The value as an int; None for anything else, for booleans, and for arrays of them."""
    if isinstance(value, bool) or "bool" in str(getattr(value, "dtype", "")):
        return None
    try:
        return int(value.__index__())
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return None


def _limits(least: int | None, most: int | None) -> str:
    if most == LARGEST and least in (None, -LARGEST):
        return " of 64 bits"
    if most not in (None, LARGEST):
        return f" from {least} to {most}"
    return "" if least is None else f", {least} or more"


def _shown(value: Any) -> str:
    """The value in at most 40 characters."""
    if isinstance(value, int) and value.bit_length() > 100:
        return f"a number of {value.bit_length()} bits"
    text = " ".join(repr(value).split())
    return text if len(text) <= 40 else f"{text[:37]}..."


R = TypeVar("R")
T = TypeVar("T")
_ROOT = Path(__file__).parent
_LIKE, _UNKNOWN = 0.55, 0.25  # of 1: how much two names share; what a part weighs that no name has


@cache
def guesses() -> dict[str, Any]:
    """The table `guesses.toml`, which is read when something is first asked of it."""
    return tomllib.loads((_ROOT / "guesses.toml").read_text(encoding="utf-8"))


@cache
def _words(kind: str) -> dict[str, str]:
    """A table of guesses.toml by the word that people write.

    "same": the public name that it means, or one of another library. "argument": what `word=value` means, empty where
    nothing is to be said. "instead": what to write; `place:word` is for one function or kind of object.
    """
    return {word: meant for words, meant in guesses()[kind].items() for word in words.split()}


def nearest(name: Any, names: Iterable[str], least: float = 0.6) -> str:
    """A question for an error message that names what was probably meant; empty where nothing is near: `least` of 1."""
    near = difflib.get_close_matches(str(name), list(names), 1, least)
    return f" (did you mean {near[0]!r}?)" if near else ""


def choice(name: Any, table: Mapping[str, T], kind: str) -> T:
    """The value of that name in a table. Raises InputError, which says what is near, for another name."""
    if not isinstance(name, str) or name not in table:
        fix = _words("instead").get(f"{kind}:{name}") or f"choose from {', '.join(table)}"
        raise InputError(f"there is no {kind} {name!r:.40}{nearest(name, table)}; {fix}")
    return table[name]


@lru_cache(4096)
def _parts(word: str) -> frozenset[str]:
    """What a name is made of, in whatever order: without verbs that all functions have, in the singular."""
    draws, little = ({part.rstrip("es") for part in guesses()[kind].split()} for kind in ("draws", "says_little"))
    parts = (part.rstrip("es") for part in re.split("[-_]", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", word).lower()))
    return frozenset("plot" if part in draws else part for part in parts if part and part not in little)


@lru_cache(8)
def _by_parts(names: tuple[str, ...]) -> dict[frozenset[str], str]:
    """The first of the names that is made of the same parts."""
    return {_parts(name): name for name in reversed(names) if name.isidentifier() and _parts(name)}


def named_in(word: str, names: Iterable[str]) -> str:
    """The one of the names that a word means: itself, in the other number, or made of the same parts; else empty."""
    near = (form for form in (word, word.removesuffix("s"), f"{word}s") if form in names)
    return next(near, "") or _by_parts(tuple(names)).get(_parts(word), "")


def fix_of(word: Any, place: str = "", names: Iterable[str] = ()) -> str:
    """The words to write in place of a word, as the end of a message; empty if nothing is known.

    It is what the table says, else the nearest of `names`, else what is made of most of the same parts.
    """
    return said_of(word, place) or nearest(word, names) or _like(str(word), place, [*names])


def said_of(word: Any, place: str = "") -> str:
    """The words of the table about a word, as the end of a message; empty if it has none."""
    fixes = _words("instead")
    plain, is_line = str(word), place.startswith(_ROOT.name)  # a command line is not told what to write in Python
    general = named_in(plain, fixes) if not is_line else plain * (plain[:1] == "-" or plain[-1:] == ")")
    fix = fixes.get(f"{place}:{plain}") or fixes.get(general, "")
    return f"; {fix}" if fix else ""


def _like(word: str, place: str, names: list[str]) -> str:
    """What to write in place of a word that shares most of its parts with a name; rare parts weigh more."""
    fixes = _words("instead")
    table = [*_words("same"), *fixes]
    functions = [*_words("same"), *_public_functions()]
    general = {"": [*functions, *fixes, *_public_edits()], "report": functions, "subject": functions}
    known = {name: name for name in (*general.get(place, ()), *names) if name.isidentifier()}
    known |= {key[len(place) + 1 :]: key for key in table if key.startswith(f"{place}:")}
    parts, own = {name: _alike(name) for name in known}, _alike(word)
    often = Counter(part for each in parts.values() for part in each)

    def weight(each: Iterable[str]) -> float:
        return sum(often[part] ** -0.5 if often[part] else _UNKNOWN for part in each)

    likeness = {name: 2 * weight(own & each) / (weight(own) + weight(each) or 1) for name, each in parts.items()}
    best = max(known, key=lambda name: likeness[name], default="")
    if likeness.get(best, 0) < _LIKE:
        return ""
    key = known[best]
    if key in fixes:
        return f"; {fixes[key]}"
    meant = repr(_words("same").get(key, best)) if key != best or best in names else _call_of(best)
    return f" (did you mean {meant}?)"


@lru_cache(2048)
def _alike(word: str) -> frozenset[str]:
    """The parts of a name, those that may mean one thing as one."""
    groups = [[part.rstrip("es") for part in group.split()] for group in guesses()["alike"]]
    return frozenset(next((group[0] for group in groups if part in group), part) for part in _parts(word)) - {"-"}


def _public_functions() -> list[str]:
    return [*vars(sys.modules[_ROOT.name])["__all__"]]


def _public_edits() -> list[str]:
    return [*import_module(f"{_ROOT.name}.interventions").__all__]


def _call_of(name: str) -> str:
    """How the public function or edit of a name is called."""
    if name in _public_edits():
        return f"edits=si.interventions.{name}(...)"
    value = getattr(sys.modules[_ROOT.name], name)
    parameters = inspect.signature(value).parameters if callable(value) else {}
    return f"si.{name}({', '.join(x for x, y in parameters.items() if y.default is y.empty and y.kind < 2) or '...'})"


def synonym(word: str, known: Iterable[str]) -> str:
    """The one of the known arguments or options that a word means; the word itself if it means none."""
    names = [*known]
    if word in names:
        return word
    own = _parts(word)
    groups = [words.split() for words in guesses()["arguments"]]
    meant = (words for words in groups if word in words or (own and own in map(_parts, words)))
    return next((each for words in meant for each in words if each in names), word)


def command_of(word: str) -> str:
    """The command that a word means, also as the name of a function of ours; the word itself if it means none."""
    same, plain = _words("same"), word.replace("-", "_")
    function = same.get(named_in(plain, same) if plain.isidentifier() else "", "").rpartition(".")[2].replace("_", "-")
    is_told = f"{_ROOT.name}:{word}" in _words("instead")
    return word if is_told else same.get(f"{_ROOT.name}:{word}") or same.get(f"{_ROOT.name}:{function}", word)


def option_of(word: str) -> str | None:
    """The words for an option, `--x`, `--x=value`, or `train:--x` of one command; None if nothing is said."""
    return _words("option").get(word)


def edit_of(word: str, edits: Iterable[str]) -> str:
    """The one of the edits that a word means; empty if it means none."""
    same = _words("same")
    of_all = same.get(named_in(word.replace("-", "_"), same), "")
    meant = of_all.removeprefix(f"{_ROOT.name}.interventions.")
    if meant != of_all and meant.isidentifier():
        return meant
    own, parts = _alike(word), {edit: _alike(edit) for edit in edits}
    near = (edit for edit in parts if parts[edit] <= own and len(own - parts[edit]) < 2 <= len(parts[edit]))
    return named_in(word.replace("-", "_"), edits) or max(near, key=lambda edit: len(parts[edit]), default="")


@cache
def _sources() -> dict[Path, str]:
    """The text of every module but those of the command line, by its path in the package; not of packages."""
    paths = sorted(path for path in _ROOT.rglob("[!_]*.py") if path.relative_to(_ROOT).parts[0] != "cli")
    return {path.relative_to(_ROOT): path.read_text(encoding="utf-8") for path in paths}


def _found(name: str) -> Any:
    """The class, constant or function of what we measure of this name in any module of ours; None without one."""
    defined = re.compile(rf"^(def |class )?{re.escape(name)}\b *[(:=\[]", re.M)
    homes = (inside.with_suffix("").parts for inside, text in _sources().items() if defined.search(text))
    modules = (import_module(".".join((_ROOT.name, *home))) for home in homes)
    found = next((vars(module)[name] for module in modules if name in vars(module)), None)
    parameters = inspect.signature(found).parameters if isinstance(found, FunctionType) else {}
    is_inner = isinstance(found, FunctionType) and next(iter(parameters), "") not in _MEASURED
    return None if is_inner else found


_MEASURED = ("model", "subject", "report", "run", "source", "name", "recipe", "table", "path")
_OF_LOAD, _OF_TOKENS = ("tokenizer", "backend", "dtype", "device_map"), ("bos", "length", "sequences", "attention_mask")


def keywords(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which raises InputError for arguments that it does not take, and says what to write instead.

    Words of the table mean one argument, such as `layer` and `layers`. Some values of foreign arguments do, too. How
    a model is loaded and its text is read may be said beside them, and the file in which the answer is saved.
    """
    known = inspect.signature(function).parameters
    words = _OF_LOAD * ("model" in known) + _OF_TOKENS * ({"tokens", "text"} & {*known} != set()) * ("model" in known)
    handed = [word for word in words if word not in known]
    takes_text = "tokenizer" not in known and bool({"tokens", "text"} & {*known})
    hands_on = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    is_saved = "path" not in known and bool({"model", "self"} & {*known})

    def meant_by(given: Mapping[str, Any], in_place: int) -> dict[str, Any]:
        at, table = function.__name__, _words("argument")
        foreign = {word: f"{word}={value!r:.20}" for word, value in given.items() if word not in known and not hands_on}
        meant = {word: table.get(f"{at}:{text}", table.get(text)) for word, text in foreign.items()}
        meant = {word: value for word, value in meant.items() if not value or value.split("=")[0] in known}
        free = [word for word in (*[*known][in_place:], *handed, *["path"] * is_saved) if word not in given]
        own = {x for x in given if f"{at}:{x}" in _words("instead") and _parts(x) not in map(_parts, free)} | {*known}
        if "position" in free and "k" in given and not {"k", "top"} & {*known}:
            k = whole_number(given["k"], "k, as in Sink_k,", 0)
            given = {x: value for x, value in given.items() if x != "k"} | {"position": max(k - 1, 0)}
        kept = {synonym(x, [x] if x in own else free): given[x] for x in given if meant.get(x) is None}
        pairs = (pair.split("=") for pair in meant.values() if pair)
        return kept | {word: literal_eval(value) for word, value in pairs}

    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        told: Any = kwargs
        by_place: Any = args
        if takes_text and (found := [x for x in args if callable(getattr(x, "convert_ids_to_tokens", None))]):
            told, by_place = kwargs | {"tokenizer": found[0]}, tuple(x for x in args if x is not found[0])
        named = meant_by(told, len(by_place))
        model: Any = (dict(zip(known, by_place, strict=False)) | named).get("model")
        if getattr(type(model), "kind", "") == "block":
            return model.as_model(public, by_place, named)
        path = named.pop("path", None) if is_saved else None
        given = _prepared([*known], by_place, named, handed) if handed else by_place
        _check_fit(function, given, named)
        answer = function(*given, **named)
        if path is not None:
            saved(answer, path)
        return answer

    public: Any = _Function(function, checked)
    return public


class _Function:
    """A function of ours. An attribute that it lacks is the function that both words mean, or says what to write."""

    def __init__(self, function: Callable[..., Any], checked: Callable[..., Any]) -> None:
        update_wrapper(self, function)
        self._checked = checked

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._checked(*args, **kwargs)

    def __get__(self, thing: Any, owner: type | None = None) -> Any:
        return self if thing is None else MethodType(self, thing)

    def __repr__(self) -> str:
        return f"<function {vars(self)['__name__']}>"

    def __reduce__(self) -> str:
        return str(vars(self)["__qualname__"])

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            own = vars(self).get("__name__", "")
            if name[0] != "_" and _parts(name) and (both := _meant(f"{own}_{name}", _public_functions())):
                return getattr(sys.modules[_ROOT.name], both)
            raise Unknown(f"{own} is a function, without {name!r}", name, lambda: fix_of(name, own) or fix_of("", own))


def saved(what: Any, path: Any, **how: Any) -> Path:
    """The path at which `si.save` writes something."""
    return Path(import_module(f"{_ROOT.name}.pages.report").save(what, path, **how))


def _prepared(names: list[str], args: tuple[Any, ...], named: dict[str, Any], handed: list[str]) -> tuple[Any, ...]:
    """The arguments by place, with the model loaded and the text read as other arguments say, which are taken away."""
    how = {word: value for word in handed if word in named and (value := named.pop(word)) is not None}
    if not how or not {*names[: len(args)], *named} & {"model"}:
        return args
    values = dict(zip(names, args, strict=False)) | named
    of_text = {word: how.pop(word) for word in _OF_TOKENS if word in how}
    loading = import_module(f"{_ROOT.name}.backends.load")
    made = {"model": loading.load(values["model"], **how) if how else loading.subject_of(values["model"])}
    text = next((name for name in ("tokens", "text") if values.get(name) is not None), "")
    if text and (mask := of_text.pop("attention_mask", None)) is not None:
        made[text] = {"input_ids": values[text], "attention_mask": mask}
    elif text and of_text:
        made[text], of_text = made["model"].tokens(values[text], **of_text), {}
    named |= of_text | {name: value for name, value in made.items() if name in named}
    return tuple(made.get(name, value) for name, value in zip(names, args, strict=False)) + args[len(names) :]


def _check_fit(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    signature, name = inspect.signature(function), function.__name__
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        names = [word for word in signature.parameters if word != "self"]
        unknown = next((word for word in kwargs if word not in signature.parameters), "")
        usage = fix_of("", name)
        fix = (fix_of(unknown, name, names) if unknown else "") + usage * ("missing" in str(error)) or usage
        if "_" in unknown and "edits" in names and unknown.replace("_", "") in map(str.lower, _public_edits()):
            fix = f"; write edits='{unknown}', with its values in brackets: edits='swap_positions(0, 4)'"
        known = "" if fix.startswith(";") else f"; it takes {', '.join(names) or 'nothing'}"
        raise InputError(f"{name}: {error}{known}{fix}") from None


def _refuse_change(value: Any, name: str, *_: Any) -> NoReturn:
    raise FrozenInstanceError(f"a {type(value).__name__} is not changed: {name}; make another one")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Told(type):
    """The type of frozen values. Each of its classes is a frozen dataclass, with the equality and text of its base.

    A class raises InputError, which names its fields, for arguments that it does not take.
    """

    def __new__(
        meta, name: str, bases: tuple[type, ...], body: dict[str, Any], kw_only: bool = False, **others: Any
    ) -> Any:
        given = {of: value for of, value in body.items() if isinstance(value, Field)}
        shown = {of: others.pop(of) for of in ("eq", "repr") if of in others}
        cls: Any = super().__new__(meta, name, bases, body, **others)
        inherited = getattr(cls, "__dataclass_params__", None)
        shown = {of: getattr(inherited, of, True) for of in ("eq", "repr")} | shown
        dataclass(frozen=True, kw_only=kw_only, **shown)(cls)
        del cls.__setattr__, cls.__delattr__  # a class that its author makes a dataclass, too, gets them again
        if inherited is None:
            cls.__setattr__ = cls.__delattr__ = _refuse_change
        if not shown["eq"] and "__eq__" not in body:  # not the equality of a base, which knows only the fields there
            cls.__eq__, cls.__hash__ = object.__eq__, object.__hash__
        for of, value in given.items():
            setattr(cls, of, value)
        return cls

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        known = inspect.signature(cls).parameters
        meant = {synonym(word, known): value for word, value in kwargs.items()} if not {*kwargs} <= {*known} else kwargs
        try:
            return super().__call__(*args, **meant)
        except TypeError:
            _check_fit(cls, args, kwargs)
            raise

    @property
    def __signature__(cls) -> inspect.Signature:
        """The fields of a class, which help and editors show."""
        signature = inspect.signature(cls.__init__)  # type: ignore[misc]
        return signature.replace(parameters=[*signature.parameters.values()][1:])


class Frozen(metaclass=Told):
    """The base of values that do not change. They say what to write in place of an attribute that they do not have."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise _no_attribute(self, type(self).__name__, name)


class Checked(Frozen):
    """The base of values whose fields are checked when they are made; see `check_fields`."""

    def __post_init__(self) -> None:
        check_fields(self)


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
        for name in dir(cls):
            function = inspect.getattr_static(cls, name)
            if (
                name[0] != "_"
                and isinstance(function, FunctionType | _Function)
                and function.__module__.startswith(_ROOT.name)
            ):
                setattr(cls, name, _Method(function))

    if not TYPE_CHECKING:  # a type checker knows the attributes that there are

        def __getattr__(self, name: str) -> Any:
            word = f"{self.kind}:{name}"
            if word in _words("same"):
                return attrgetter(_words("same")[word])(self)
            if name[0] != "_" and word not in _words("instead"):
                for part in filter(None, map(vars(self).get, self.parts)):
                    if hasattr(part, meant := synonym(name, vars(part))):
                        return getattr(part, meant)
                if function := _public(name, self.role):
                    return Bound(function, self)
            raise _no_attribute(self, self.kind, name)


def _no_attribute(thing: Any, kind: str, name: str) -> Unknown:
    """The error of an attribute that a thing of this kind does not have, which says what to write in its place."""

    def fix() -> str:
        inside = f"; write {kind}.model.{name}" if hasattr(vars(thing).get("model"), name) else ""
        names = [known for known in dir(thing) if not known.startswith("_") and known not in Answering.__annotations__]
        known = f"; it has {', '.join(names)}" if len(names) < 16 else ""
        places = (kind, *(base.__name__ for base in type(thing).__mro__))
        said = next(filter(None, (said_of("", place) for place in places)), "")
        return fix_of(name, kind) or inside or nearest(name, names) or said or known

    return Unknown(f"a {kind} has no attribute {name!r}", name, fix)


def _public(name: str, role: str) -> Callable[..., Any] | None:
    """The function of `si` by this name that takes an object of this role first, or makes edits."""
    function: Any = getattr(sys.modules[_ROOT.name], name, None)
    is_function = isinstance(function, FunctionType | _Function | partial)
    first = next(iter(inspect.signature(function).parameters.values()), None) if is_function else None
    makes_edits = role == "model" and first is not None and first.kind is first.VAR_POSITIONAL
    names = (role, "before") if role == "model" else (role,)  # two models are compared
    return function if first is not None and (first.name in names or makes_edits) else None


def _meant(name: str, public: Iterable[str]) -> str:
    """The public name, or the word of the table, that a word means; empty if it means none."""
    return named_in(name, dict.fromkeys((*public, *_words("same"))))


def _function_of(value: Any, name: str) -> Any:
    """What a name gives: the value, or of an edit whose name is written in small letters, a function; see `edited`."""
    is_edit = name.islower() and getattr(value, "__module__", "").startswith(f"{_ROOT.name}.interventions.")
    return import_module(f"{_ROOT.name}.measurement.tabulate").edited(value) if is_edit else value


class Package(ModuleType):
    """A package or module of ours. Its modules are attributes, imported on first use: importing torch takes seconds."""

    def __getattr__(self, name: str) -> Any:
        if name[0] == "_":  # imports ask for some of these
            raise Unknown(f"module {self.__name__!r} has no attribute {name!r}", name)
        names = dir(self)
        if name in names and name not in vars(self).get("__all__", ()):
            return import_module(f"{self.__name__}.{name}")
        public = _public_functions()
        place = "plot_" if self.__name__ == f"{_ROOT.name}.plots" else ""
        word = _meant(f"{place}{name}", public) or _meant(name, public)
        is_told = name in _words("instead") and name not in _words("same")
        if word and not is_told and (word != name or word in _words("same")):
            meant = _words("same").get(word, word)
            meant = meant if "." in meant else f"{_ROOT.name}.{meant}"
            return _function_of(resolve_name(meant), name)
        fix = f"; write si.{name}" if name in public else said_of(name)
        edit = "" if fix or not name.islower() else named_in(name, _public_edits())
        if edit and edit.lower() != name:
            return _function_of(resolve_name(f"{_ROOT.name}.interventions.{edit}"), name)
        if not fix and (found := _found(name)) is not None:
            return found
        if re.fullmatch(r"(tab|fig|table|figure)_?\d+", name):
            fix = fix or f"; write si.reproduce({name!r})"
        raise Unknown(f"module {self.__name__!r} has no attribute {name!r}", name, lambda: fix or self._fix_of(name))

    def _fix_of(self, name: str) -> str:
        """What to write in place of an attribute that is not there."""
        names = dir(self)
        near = nearest(name, names, 0.85) or fix_of(name) or nearest(name, names)
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
        if meant := _words("same").get(f"{name}()"):
            return resolve_name(meant)(*args, **kwargs)
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
