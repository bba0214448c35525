"""What a refusal is in every test: an InputError of one line, or Python's TypeError for arguments that do not fit."""

import re

import pytest

from sinkinterp.checks import InputError


def refused(call, *words):
    """The message of the refusal that a call ends in: one line, which has these words in it."""
    with pytest.raises((InputError, TypeError)) as error:
        call()
    message = str(error.value)
    assert isinstance(error.value, InputError) or _DO_NOT_FIT.search(message), message
    assert message and "\n" not in message and len(message) < 4000, message
    missing = [word for word in words if word not in message]
    assert not missing, f"{missing} are not in: {message}"
    return message


_DO_NOT_FIT = re.compile(r"unexpected keyword|required (positional|keyword)|positional arguments? but|multiple values")
WRONG = {  # answers that cannot take the place of a tensor
    "None": lambda x: None,
    "a number": lambda x: 0.5,
    "a list": lambda x: x.tolist(),
    "a text": lambda x: "x",
    "no axes": lambda x: x.new_zeros(()),
    "a row less": lambda x: x[:-1],
    "one row for all": lambda x: x[:1],
    "an entry less": lambda x: x[..., :-1],
    "one entry for all": lambda x: x[..., :1],
    "another axis": lambda x: x[None],
    "turned": lambda x: x.transpose(0, -1)[:-1],
    "another dtype": lambda x: x.int(),
    "another device": lambda x: x.to("meta"),
    "changed in place": lambda x: x.add_(1),
}
