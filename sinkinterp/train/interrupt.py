"""Interrupts that wait for the end of a step."""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def deferred() -> Iterator[Callable[[], bool]]:
    """Yields a function that tells whether SIGINT (Ctrl-C) or SIGTERM was received.

    The second signal has its usual effect: it stops the program immediately. A signal that the parent process told us
    to ignore, as nohup does with SIGINT, stays ignored. Only the main thread can catch signals; in other threads the
    function always returns False.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    received: list[int] = []
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    handlers = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}

    def receive(number: int, frame: Any) -> None:
        received.append(number)
        _install(handlers)

    _install(dict.fromkeys(handlers, receive))
    try:
        yield lambda: bool(received)
    finally:
        _install(handlers)


def _install(handlers: Mapping[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
