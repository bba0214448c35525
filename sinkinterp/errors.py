"""The one error that a user's input can cause."""


class InputError(ValueError):
    """Something the user gave cannot be used. The message is one line and says the fix."""
