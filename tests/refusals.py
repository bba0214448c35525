"""What a refusal is in every test: an InputError of one line."""

import pytest

from sinkinterp.checks import InputError


def refused(call, *words):
    """The message of the InputError that a call ends in: one line, which has these words in it."""
    with pytest.raises(InputError) as error:
        call()
    message = str(error.value)
    assert message and "\n" not in message and len(message) < 4000, message
    missing = [word for word in words if word not in message]
    assert not missing, f"{missing} are not in: {message}"
    return message
