"""The one error that means a mistake in what the user gave."""

import re

_LONGEST_WORD, _LONGEST = 300, 4000  # characters of a message that are shown whole


class InputError(ValueError):
    """Something that the user gave cannot be used. The message is one line that says what, why, and the fix.

    A name or a path in it may hold line ends, which become spaces, and thousands of letters, which are cut.
    """

    def __init__(self, message: str) -> None:
        words = re.sub(rf"\S{{{_LONGEST_WORD},}}", lambda word: _cut(word[0], 100), " ".join(message.split("\n")))
        super().__init__(_cut(words, 1500) if len(words) > _LONGEST else words)


def _cut(text: str, kept: int) -> str:
    """The beginning and the end of a text."""
    return f"{text[:kept]}...{text[-kept // 2 :]}"
