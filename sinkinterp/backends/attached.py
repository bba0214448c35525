"""Things that are attached to a model for a while: hooks, functions in place of methods, and whose pass it is."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import torch
from torch import nn

from ..checks import InputError
from .recorder import Recorder

_LOCKS: WeakKeyDictionary[Any, threading.RLock] = WeakKeyDictionary()
PATCHES: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()  # of the models that are inside `patched`
RECORDING: ContextVar[Recorder | None] = ContextVar("sinkinterp_recording", default=None)  # whose pass this is


def lock_of(owner: Any) -> threading.RLock:
    """The lock of a model or a tokenizer, always the same one. A thread that holds it may take it again."""
    return _LOCKS.setdefault(owner, threading.RLock())  # its dictionary does this in one step, for all threads


def thread_and_task() -> tuple[int, Any]:
    """The thread that runs this, and the asyncio task; None outside of tasks."""
    try:
        return threading.get_ident(), asyncio.current_task()
    except RuntimeError:  # no event loop runs
        return threading.get_ident(), None


@contextmanager
def used_alone(model: Any) -> Iterator[None]:
    """In the block, other threads wait to use the model. Raises InputError inside their blocks of `patched`."""
    lock = lock_of(model)
    while not lock.acquire(timeout=0.1):
        if model in PATCHES:
            what = f"this {type(model).__name__} is inside si.patched(...) of another thread"
            raise InputError(what)
    try:
        yield
    finally:
        lock.release()


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


class Attached:
    """Parts that a model has for a while. A copy of the model would keep it for ever, so it refuses to be copied."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise InputError("a model that is patched or measured now cannot be copied or pickled; do it before or after")


@dataclass(frozen=True, eq=False)
class Hook(Attached):
    """A hook that acts in the passes of one recorder, and leaves those of other threads and tasks alone."""

    recorder: Recorder
    act: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.act(*args, **kwargs) if RECORDING.get() is self.recorder else None


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


def inside_compiled(model: Any) -> Any:
    """The model that `torch.compile` wrapped; any other as it is. Raises InputError for a proxy of one."""
    kinds = (nn.Module, str)
    if isinstance(model, kinds) and not issubclass(type(model), kinds):
        raise InputError(f"a {type(model).__name__} stands for another object; give that object itself")
    return inside_compiled(model._orig_mod) if _is_wrapped(model) else model


def _is_wrapped(model: Any) -> bool:
    return isinstance(model, nn.Module) and "_orig_mod" in model._modules  # importing its class takes seconds


@contextmanager
def uncompiled(parts: Sequence[Any]) -> Iterator[None]:
    """Here, modules that are compiled, in place or by `torch.compile`, run as they are written, so hooks are seen."""
    in_place = {part: None for part in parts if part._compiled_call_impl is not None}
    wrapped = {part: part._orig_mod.__call__ for part in parts if _is_wrapped(part)}
    with computed_by(in_place, "_compiled_call_impl"), computed_by(wrapped):
        yield


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Here, the model has no dropout, is not compiled, and computes in its own dtype. Afterwards all is as it was."""
    parts = [*model.modules()]
    training = [part for part in parts if part.training]
    try:
        with uncompiled(parts), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            if training:
                model.eval()
            yield
    finally:
        for part in training:
            part.training = True
