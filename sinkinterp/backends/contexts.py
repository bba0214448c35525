"""Which pass a context (a thread, an asyncio task) makes now, and the blocks of `patched` that it is inside of."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any, NoReturn

from torch import nn

from ..attention.sites import Edit
from ..errors import InputError
from .recorder import Recorder


@dataclass(frozen=True)
class Recording:
    """A recorder, and the block of every module whose calls it is shown. Calls of other modules are left alone."""

    recorder: Recorder
    layers: Mapping[nn.Module, int]


@dataclass(eq=False)
class Block:
    """A block of `patched`, the thread that entered it, and its model: none when the block is over."""

    model: nn.Module | None
    edits: tuple[Edit, ...]
    thread: int = field(default_factory=get_ident)


RECORDING: ContextVar[Recording | None] = ContextVar("sinkinterp_recording", default=None)
BLOCKS: ContextVar[tuple[Block, ...]] = ContextVar("sinkinterp_blocks", default=())


def edits_around(model: nn.Module) -> tuple[Edit, ...]:
    """The edits of all blocks of the model that this context is inside of, from the outermost one on."""
    return tuple(edit for block in BLOCKS.get() if block.model is model for edit in block.edits)


@contextmanager
def recorded_by(recorder: Recorder, layers: Mapping[nn.Module, int] = {}) -> Iterator[None]:
    """In the block, the passes of this context are the recorder's."""
    token = RECORDING.set(Recording(recorder, layers))
    try:
        yield
    finally:
        RECORDING.reset(token)


def is_recorded_by(recorder: Recorder) -> bool:
    """Whether this context is in a pass of the recorder."""
    recording = RECORDING.get()
    return recording is not None and recording.recorder is recorder


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
