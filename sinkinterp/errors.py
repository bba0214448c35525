"""The one error that means a mistake in what the user gave."""

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """Something that the user gave cannot be used. The message is one line that says what, why, and the fix."""


def no_such(what: str, name: str, choices: Iterable[str]) -> InputError:
    """The error for a name that is not among the choices; it suggests the nearest ones and lists all."""
    names = list(choices)
    near = get_close_matches(name, names, n=2) or [choice for choice in names if name and choice.startswith(name)][:2]
    question = f" did you mean {' or '.join(near)}?" if near else ""
    return InputError(f"there is no {what} {name!r};{question} choose from {', '.join(names)}")
