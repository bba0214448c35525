"""Interrupts that wait for the end of a step."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def deferred() -> Iterator[Callable[[], bool]]:
    """A question, whether Ctrl-C or a termination has arrived; a second one stops at once.

    Only the main thread can catch signals; in others the answer is always no.
    """
    arrived: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def note(number: int, frame: Any) -> None:
        arrived.append(number)
        _put_back(before)

    for number in SIGNALS:
        signal.signal(number, note)
    try:
        yield lambda: bool(arrived)
    finally:
        _put_back(before)


def _put_back(before: dict[signal.Signals, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)
