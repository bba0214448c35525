"""The one error that means a mistake in what the user gave."""


class InputError(ValueError):
    """Something that the user gave cannot be used. The message is one line that says what, why, and the fix."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split("\n")))  # a name or a path in it may hold a newline
