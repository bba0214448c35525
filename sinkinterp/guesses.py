"""What people write, and what to write in its place: `guesses.toml`, public names and what is like them."""

import difflib
import inspect
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any


class Unknown(AttributeError):
    """An attribute that is not there. What to write in its place is looked for when the message is read."""

    def __init__(self, what: str, name: str, fix: Callable[[], str] = str) -> None:
        super().__init__(what, name=name)
        self._fix = fix

    def __str__(self) -> str:
        return f"{self.args[0]}{self._fix()}"

    def __reduce__(self) -> Any:
        return AttributeError, (str(self),)  # another process gets the message


ROOT = Path(__file__).parent
LISTING = ("list", "names", "available", "all")  # words for what there is of a kind
_LIKE, _UNKNOWN = 0.55, 0.25  # of 1: how much two names share; what a part weighs that no name has


@cache
def guesses() -> dict[str, Any]:
    """The table `guesses.toml`, which is read when something is first asked of it."""
    return tomllib.loads((ROOT / "guesses.toml").read_text(encoding="utf-8"))


@cache
def words_of(kind: str) -> dict[str, str]:
    """A table of guesses.toml by the word that people write.

    "same": the public name that it means, or one of another library. "argument": what `word=value` means, empty where
    nothing is to be said. "instead": what to write; `place:word` is for one function or kind of object.
    """
    return {word: meant for words, meant in guesses()[kind].items() for word in words.split()}


def nearest(name: Any, names: Iterable[str], least: float = 0.6) -> str:
    """A question for an error message that names what was probably meant; empty where nothing is near: `least` of 1."""
    near = difflib.get_close_matches(str(name), list(names), 1, least)
    return f" (did you mean {near[0]!r}?)" if near else ""


@lru_cache(4096)
def parts_of(word: str) -> frozenset[str]:
    """What a name is made of, in whatever order: without verbs that all functions have, in the singular."""
    draws, little = ({part.rstrip("es") for part in guesses()[kind].split()} for kind in ("draws", "says_little"))
    parts = (part.rstrip("es") for part in re.split("[-_]", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", word).lower()))
    return frozenset("plot" if part in draws else part for part in parts if part and part not in little)


@lru_cache(8)
def _by_parts(names: tuple[str, ...]) -> dict[frozenset[str], str]:
    """The first of the names that is made of the same parts."""
    return {parts_of(name): name for name in reversed(names) if name.isidentifier() and parts_of(name)}


def named_in(word: str, names: Iterable[str]) -> str:
    """The one of the names that a word means: itself, in the other number, or made of the same parts; else empty."""
    near = (form for form in (word, word.removesuffix("s"), f"{word}s") if form in names)
    return next(near, "") or _by_parts(tuple(names)).get(parts_of(word), "")


def fix_of(word: Any, place: str = "", names: Iterable[str] = ()) -> str:
    """The words to write in place of a word, as the end of a message; empty if nothing is known.

    It is what the table says, else the nearest of `names`, else what is made of most of the same parts.
    """
    return said_of(word, place) or nearest(word, names) or _like(str(word), place, [*names])


def said_of(word: Any, place: str = "") -> str:
    """The words of the table about a word, as the end of a message; empty if it has none."""
    fixes = words_of("instead")
    plain, is_line = str(word), place.startswith(ROOT.name)  # a command line is not told what to write in Python
    general = named_in(plain, fixes) if not is_line else plain * (plain[:1] == "-" or plain[-1:] == ")")
    fix = fixes.get(f"{place}:{plain}") or fixes.get(general, "")
    return f"; {fix}" if fix else ""


def _like(word: str, place: str, names: list[str]) -> str:
    """What to write in place of a word that shares most of its parts with a name; rare parts weigh more."""
    fixes = words_of("instead")
    table = [*words_of("same"), *fixes]
    functions = [*words_of("same"), *public_functions()]
    general = {"": [*functions, *fixes, *public_edits()], "report": functions, "subject": functions}
    known = {name: name for name in (*general.get(place, ()), *names) if name.isidentifier()}
    known |= {key[len(place) + 1 :]: key for key in table if key.startswith(f"{place}:")}
    parts, own = {name: alike_parts(name) for name in known}, alike_parts(word)
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
    meant = repr(words_of("same").get(key, best)) if key != best or best in names else _call_of(best)
    return f" (did you mean {meant}?)"


@lru_cache(2048)
def alike_parts(word: str) -> frozenset[str]:
    """The parts of a name, those that may mean one thing as one."""
    groups = [[part.rstrip("es") for part in group.split()] for group in guesses()["alike"]]
    return frozenset(next((group[0] for group in groups if part in group), part) for part in parts_of(word)) - {"-"}


def public_functions() -> list[str]:
    """The names that `si` has."""
    return [*vars(sys.modules[ROOT.name])["__all__"]]


def public_edits() -> list[str]:
    """The names that `si.interventions` has."""
    return [*import_module(f"{ROOT.name}.interventions").__all__]


def _call_of(name: str) -> str:
    """How the public function or edit of a name is called."""
    if name in public_edits():
        return f"edits=si.interventions.{name}(...)"
    value = getattr(sys.modules[ROOT.name], name)
    parameters = inspect.signature(value).parameters if callable(value) else {}
    return f"si.{name}({', '.join(x for x, y in parameters.items() if y.default is y.empty and y.kind < 2) or '...'})"


def synonym(word: str, known: Iterable[str]) -> str:
    """The one of the known arguments or options that a word means; the word itself if it means none."""
    names = [*known]
    return word if word in names else next((each for each in _synonyms(word) if each in names), word)


@lru_cache(2048)
def _synonyms(word: str) -> list[str]:
    """The words for the argument that a word, or one of the same parts, means in the table."""
    own, groups = parts_of(word), [words.split() for words in guesses()["arguments"]]
    meant = (words for words in groups if word in words or (own and own in map(parts_of, words)))
    return [each for words in meant for each in words]


def command_of(word: str) -> str:
    """The command that a word means, also as the name of a function of ours; the word itself if it means none."""
    same, plain = words_of("same"), word.replace("-", "_")
    function = same.get(named_in(plain, same) if plain.isidentifier() else "", "").rpartition(".")[2].replace("_", "-")
    is_told = f"{ROOT.name}:{word}" in words_of("instead")
    return word if is_told else same.get(f"{ROOT.name}:{word}") or same.get(f"{ROOT.name}:{function}", word)


def option_of(word: str) -> str | None:
    """The words for an option, `--x`, `--x=value`, or `train:--x` of one command; None if nothing is said."""
    return words_of("option").get(word)


def edit_of(word: str, edits: Iterable[str]) -> str:
    """The one of the edits that a word means; empty if it means none."""
    same = words_of("same")
    of_all = same.get(named_in(word.replace("-", "_"), same), "")
    meant = of_all.removeprefix(f"{ROOT.name}.interventions.")
    if meant != of_all and meant.isidentifier():
        return meant
    own, parts = alike_parts(word), {edit: alike_parts(edit) for edit in edits}
    near = (edit for edit in parts if parts[edit] <= own and len(own - parts[edit]) < 2 <= len(parts[edit]))
    return named_in(word.replace("-", "_"), edits) or max(near, key=lambda edit: len(parts[edit]), default="")


@cache
def _sources() -> dict[Path, str]:
    """The text of every module but those of the command line, by its path in the package; not of packages."""
    paths = sorted(path for path in ROOT.rglob("[!_]*.py") if path.relative_to(ROOT).parts[0] != "cli")
    return {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in paths}


def found_anywhere(name: str) -> Any:
    """The class, constant or function of what we measure of this name in any module of ours; None without one."""
    defined = re.compile(rf"^(def |class )?{re.escape(name)}\b *[(:=\[]", re.M)
    homes = (inside.with_suffix("").parts for inside, text in _sources().items() if defined.search(text))
    modules = (import_module(".".join((ROOT.name, *home))) for home in homes)
    found = next((vars(module)[name] for module in modules if name in vars(module)), None)
    parameters = inspect.signature(found).parameters if isinstance(found, FunctionType) else {}
    is_inner = isinstance(found, FunctionType) and next(iter(parameters), "") not in _MEASURED
    return None if is_inner else found


_MEASURED = ("model", "subject", "report", "run", "source", "name", "recipe", "table", "path")


_OF_KINDS = ("kind", "is_value", "role", "parts")  # of `Answering`, for itself


def no_attribute(thing: Any, kind: str, name: str) -> Unknown:
    """The error of an attribute that a thing of this kind does not have, which says what to write in its place."""

    def fix() -> str:
        inside = f"; write {kind}.model.{name}" if hasattr(vars(thing).get("model"), name) else ""
        return fix_of(name, kind) or inside or nearest(name, _names_of(thing)) or usage_of(thing, kind)

    return Unknown(f"a {kind} has no attribute {name!r}", name, fix)


def usage_of(thing: Any, kind: str) -> str:
    """The end of a message that says how a thing is used, by its kind or its classes, else what it has."""
    places = (kind, *(base.__name__ for base in type(thing).__mro__))
    names = _names_of(thing)
    known = f"; it has {', '.join(names)}" if len(names) < 16 else ""
    return next(filter(None, (said_of("", place) for place in places)), known)


def _names_of(thing: Any) -> list[str]:
    """The attributes of a thing that are for people."""
    return [name for name in dir(thing) if not name.startswith("_") and name not in _OF_KINDS]


def meant_by_table(name: str) -> str:
    """The public name, or the word of the table, that a word means; empty if it means none."""
    return named_in(name, dict.fromkeys((*public_functions(), *words_of("same"))))
