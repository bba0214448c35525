"""The one error that means a mistake in what the user gave, and what makes it of the errors of libraries."""

import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from types import ModuleType
from typing import ParamSpec

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


def reason_of(error: Exception) -> str:
    """Why something failed, in one line: what the system says, or the beginning of the message, or the error's type."""
    if isinstance(error, InputError):
        return str(error)
    said = textwrap.shorten(getattr(error, "strerror", None) or str(error), 300).rstrip(".")
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
