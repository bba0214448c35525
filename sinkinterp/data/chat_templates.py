"""Chats as tokens by a tokenizer's chat template, which is a program of whoever made the model."""

import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ..checks import unicode_text
from ..errors import InputError

_ROLES = {"human": "user", "gpt": "assistant"}  # of conversations in the form of ShareGPT
SECONDS = 30.0  # in which a template must render a chat


class _TooSlow(BaseException):
    """The time is over. Templates catch every Exception."""


def messages_in(row: Any) -> Any:
    """The messages of a row: its `messages` or `conversations`, or the row itself; None where it has none.

    Messages with `from` and `value` get a role and a content. Other items are left as they are.
    """
    given = row.get("messages") or row.get("conversations") if isinstance(row, Mapping) else row
    return [_message(message) for message in given] if isinstance(given, list | tuple) else given


def _message(given: Any) -> Any:
    if not isinstance(given, Mapping) or not {"from", "value"} <= given.keys():
        return given
    return {"role": _ROLES.get(given["from"], given["from"]), "content": given["value"]}


def rendered(chat: Sequence[Mapping[str, str]], tokenizer: Any, what: str, **options: Any) -> Any:
    """The answer of the tokenizer's `apply_chat_template` for a chat. Error messages call the chat `what`.

    Raises InputError where the template refuses the chat, fails, or has not ended after 30 seconds. Only the main
    thread of a POSIX system can end it.
    """
    for message in chat:
        if isinstance(message["content"], str):
            unicode_text(message["content"], what)
    try:
        with _ending_after(SECONDS):
            return tokenizer.apply_chat_template(chat, **options)
    except _TooSlow:
        reason = f"the model's chat template has not ended after {SECONDS:.0f} s"
    except Exception as error:  # templates are programs
        reason = f"the model's chat template refuses it: {error or type(error).__name__}"
    roles = ", ".join(str(message["role"]) for message in chat)
    raise InputError(f"{what} ({roles}): {reason}; change its roles, or take another tokenizer")


@contextmanager
def _ending_after(seconds: float) -> Iterator[None]:
    """Raises _TooSlow in the block after some seconds."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: Any) -> None:
        raise _TooSlow

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
