"""What people give: the error that means a mistake in it, and checks that raise it."""

import difflib
import inspect
import math
import operator
import os
import textwrap
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import Field, fields
from functools import wraps
from importlib.util import find_spec
from typing import Any, ParamSpec, TypeVar

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


def refuse_first(faults: Mapping[str, object], what: str, fix: str = "") -> None:
    """Raises InputError, which begins with `what` and ends with the fix, for the first of these faults that is one."""
    for fault, is_one in faults.items():
        if is_one:
            raise InputError(f"{what} {fault}{fix and f'; {fix}'}")


def reason_of(error: Exception) -> str:
    """Why something failed, in one line: what the system says, or the beginning of the message, or the error's type."""
    if isinstance(error, InputError):
        return str(error)
    whole = (getattr(error, "strerror", None) or str(error)).partition("\nCheck your internet connection")[0]
    said = textwrap.shorten(whole, 300, placeholder=" [...]")
    if said.endswith("[...]") and ". " in said:  # whole sentences
        said = said.rpartition(". ")[0]
    said = said.rstrip(".")
    return said if " " in said else f"{type(error).__name__} {said}".strip()


def check_installed(package: str, fix: str) -> None:
    """Raises InputError where an optional package is absent."""
    if find_spec(package) is None:
        raise InputError(f"{package} is not installed; {fix}")


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


def on_one_line(text: str) -> str:
    """The text with line ends and other control characters as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def visible(text: str) -> str:
    """The text with all control characters but line ends as escapes."""
    return "\n".join(map(on_one_line, text.split("\n")))


def accepting(function: Any, what: str, *arguments: Any, **named: Any) -> Any:
    """The function itself. Raises InputError, which calls it `what`, unless it can be called with these arguments."""
    is_ours = type(function).__module__.startswith(f"{__package__}.") and hasattr(type(function), "kind")
    if not callable(function) or is_ours:  # things of ours only say how they are used
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
            raise InputError(f"{name} is of type {' or '.join(kind.__name__ for kind in kinds)}; got {_shown(held)}")


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


class Checked:
    """The base of frozen dataclasses whose fields are checked when a value is made; see `check_fields`."""

    def __post_init__(self) -> None:
        check_fields(self)


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


T = TypeVar("T")


def choice(name: Any, table: Mapping[str, T], kind: str) -> T:
    """The value of that name in a table. Raises InputError, which says what is near, for another name."""
    if not isinstance(name, str) or name not in table:
        raise InputError(f"there is no {kind} {name!r:.40}{nearest(name, table)}; choose from {', '.join(table)}")
    return table[name]


def nearest(name: Any, names: Iterable[str], least: float = 0.6) -> str:
    """A question for an error message that names the most similar of the names; empty if none is `least` of 1 alike."""
    near = difflib.get_close_matches(str(name), list(names), 1, least)
    return f" (did you mean {str(near[0])!r}?)" if near else ""
