"""One user of a model at a time: other threads wait, and Ctrl-C is raised where the model can be put back."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

_LOCKS: WeakKeyDictionary[Any, threading.RLock] = WeakKeyDictionary()
_PENDING: list[Callable[..., Any]] = []  # the handler of a Ctrl-C that has come and is not yet raised
PATIENCE = 2.0  # seconds after which another Ctrl-C is raised at once: a function of the user's own may never end


def lock_of(owner: Any) -> threading.RLock:
    """The lock of a model or a tokenizer, always the same one. A thread that holds it may take it again."""
    return _LOCKS.setdefault(owner, threading.RLock())  # its dictionary does this in one step, for all threads


def holds(owner: Any) -> bool:
    """Whether this thread has the lock of a model."""
    return bool(lock_of(owner)._is_owned())  # type: ignore[attr-defined]  # which threading.Condition asks too


def _forget_others() -> None:
    """Drops the locks that threads hold which a forked process does not have."""
    for owner in [owner for owner, lock in _LOCKS.items() if not lock._is_owned()]:  # type: ignore[attr-defined]
        del _LOCKS[owner]


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget_others)


@contextmanager
def exclusive(model: Any) -> Iterator[None]:
    """Here, no other thread is in an `exclusive` block of the model, and Ctrl-C waits for `raise_if_interrupted`.

    So whatever the block changes in the model is also undone after Ctrl-C. Another one, after two seconds, is raised at
    once.
    """
    with _interrupts_held():
        lock = lock_of(model)
        while not lock.acquire(timeout=0.1):
            raise_if_interrupted()
        try:
            yield
        finally:
            lock.release()


def raise_if_interrupted() -> None:
    """Raises KeyboardInterrupt where Ctrl-C has come in an `exclusive` block. It costs nothing elsewhere."""
    if _PENDING and threading.current_thread() is threading.main_thread():
        _PENDING.pop()(signal.SIGINT, None)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """In the block, the first Ctrl-C waits for `raise_if_interrupted`, or for the end of the outermost block."""
    handler = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not callable(handler) or getattr(handler, "holds_interrupts", False):
        yield
        return

    first = 0.0

    def hold(number: int, frame: Any) -> None:
        nonlocal first
        if not _PENDING:
            first = time.monotonic()
            _PENDING.append(handler)
        elif time.monotonic() - first > PATIENCE:
            _PENDING.clear()
            handler(number, frame)

    hold.holds_interrupts = True  # type: ignore[attr-defined]
    _PENDING.clear()
    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        raise_if_interrupted()
