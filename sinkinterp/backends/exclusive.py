"""The present users of a model, and the hooks that they attach to it.

One user at a time: other threads wait, and Ctrl-C is raised where the model can be put back. A context (a thread, an
asyncio task) knows which pass it makes, and the blocks of `patched` that it is inside of.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

from torch import nn

from ..attention import Edit
from ..checks import InputError
from .recorder import Recorder

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

    So all changes of the block in the model are also undone after Ctrl-C. Another one, after two seconds, is raised at
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


# Contexts


@dataclass(eq=False)
class Block:
    """A block of `patched`, the thread that entered it, and its model: none when the block is over."""

    model: nn.Module | None
    edits: tuple[Edit, ...]
    thread: int = field(default_factory=threading.get_ident)


RECORDING: ContextVar[Recorder | None] = ContextVar("sinkinterp_recording", default=None)
BLOCKS: ContextVar[tuple[Block, ...]] = ContextVar("sinkinterp_blocks", default=())


def edits_around(model: nn.Module) -> tuple[Edit, ...]:
    """The edits of all blocks of the model that this context is inside of, from the outermost one on."""
    return tuple(edit for block in BLOCKS.get() if block.model is model for edit in block.edits)


@contextmanager
def set_to(variable: ContextVar[Any], value: Any, filled: Any = None) -> Iterator[Any]:
    """In the block, a variable of this context has the value. Yields what the value fills."""
    token = variable.set(value)
    try:
        yield filled
    finally:
        variable.reset(token)


def recorded_by(
    recorder: Recorder, layers: Mapping[nn.Module, int] = {}, n_kv_heads: int = 1
) -> AbstractContextManager[None]:
    """In the block, the passes of this context are the recorder's, which is shown the calls of these modules."""
    recorder.layers, recorder.n_kv_heads = layers, n_kv_heads
    return set_to(RECORDING, recorder)


def is_recorded_by(recorder: Recorder) -> bool:
    """Whether this context is in a pass of the recorder."""
    return RECORDING.get() is recorder


class Attached:
    """What stands in a model for a while. A copy of the model would keep it for ever, so it refuses to be copied."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise InputError("a model that is patched or measured now cannot be copied or pickled; do it before or after")


@dataclass(frozen=True, eq=False)
class Hook(Attached):
    """A hook that acts in the passes of one recorder, and leaves those of other threads and tasks alone."""

    recorder: Recorder
    act: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.act(*args, **kwargs) if is_recorded_by(self.recorder) else None


@contextmanager
def computed_by(functions: Mapping[nn.Module, Callable[..., Any] | None], method: str = "forward") -> Iterator[None]:
    """In the block, these functions compute a method of these modules."""
    before = {module: vars(module).get(method) for module in functions}
    for module, function in functions.items():
        setattr(module, method, function)
    try:
        yield
    finally:
        for module, own in before.items():
            delattr(module, method)
            if own is not None:  # such as accelerate's, which moves the weights first, or that of a block around this
                setattr(module, method, own)
