"""The one error that means a mistake in what the user gave."""

_LONGEST_WORD, _LONGEST = 300, 4000  # characters of a message that are shown whole


class InputError(ValueError):
    """Something that the user gave cannot be used. The message is one line that says what, why, and the fix.

    A name or a path in it may hold line ends, which become spaces, and thousands of letters, which are cut.
    """

    def __init__(self, message: str) -> None:
        parts = message.replace("\n", " ").split(" ")
        words = " ".join(_cut(part, 100) if len(part) >= _LONGEST_WORD else part for part in parts)
        super().__init__(_cut(words, 1500) if len(words) > _LONGEST else words)


def _cut(text: str, kept: int) -> str:
    """The beginning and the end of a text."""
    return f"{text[:kept]}...{text[-kept // 2 :]}"
