"""The boundary to functions of users: their results fit, and they do not change their arguments in place.

Metrics, edits, operations and scores go through it, with a name for the message. A check takes microseconds.
"""

from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor

from ..checks import accepting
from ..errors import InputError


def alike(answer: Any, x: Tensor, who: str) -> Tensor:
    """The answer. Raises InputError unless it is a tensor of the shape, dtype and device of `x`."""
    if answer is not x and _kind(answer) != _kind(x):
        raise InputError(f"{who} returned {_shown(answer)}; it must return {_shown(x)}")
    return answer


def metric(name: str) -> str:
    """Returns what messages call a metric, or any read, of this name."""
    return f"the metric {name}"


def called(function: Callable[..., Any], who: str, *arguments: Any) -> Any:
    """What a function returns. Raises InputError where it is not a function, or takes other arguments than these."""
    try:
        return function(*arguments)
    except TypeError:
        accepting(function, who, *arguments)
        raise


def with_axes(answer: Any, who: str) -> Tensor:
    """The answer. Raises InputError unless it is a tensor with an axis."""
    if not isinstance(answer, Tensor) or not answer.ndim:
        raise InputError(f"{who} returned {_shown(answer)}; it must return a tensor whose first axis is the sequence")
    return answer


def per_sequence(answer: Any, n: int, who: str) -> Tensor:
    """The answer. Raises InputError unless it is a tensor whose first axis counts `n` sequences."""
    if not isinstance(answer, Tensor) or answer.shape[:1] != (n,):
        raise InputError(f"{who} returned {_shown(answer)}; its first axis must be the sequence, here {n}")
    return answer


def number_per_sequence(answer: Any, n: int, who: str, fix: str) -> Tensor:
    """The answer. Raises InputError unless it is a tensor with a number for each of `n` sequences."""
    if not isinstance(answer, Tensor) or answer.shape != (n,):
        raise InputError(f"{who} gives a tensor with a number per sequence, here ({n},); got {_shown(answer)}; {fix}")
    return answer


class Unchanged:
    """Calls functions of a value, and raises InputError where one changes the tensors in it, in place."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.tensors = [x for x in tensors_in(value) if not x.is_inference()]  # which count no changes

    def shown_to(self, function: Callable[..., Any], who: str, *arguments: Any) -> Any:
        """What the function returns for the arguments and the value."""
        before = self._version()
        answer = called(function, who, *arguments, self.value)
        if self._version() != before:
            raise InputError(f"{who} changes what it is given, in place; take a copy first, x.clone()")
        return answer

    def _version(self) -> int:
        return sum(x._version for x in self.tensors)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """A tensor itself, or those that a dataclass and the dataclasses in it hold, in fields or computed before."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from tensors_in(part)
    elif is_dataclass(value):
        for part in vars(value).values():
            yield from tensors_in(part)


def _kind(x: Any) -> tuple[torch.Size, torch.dtype, torch.device] | None:
    return (x.shape, x.dtype, x.device) if isinstance(x, Tensor) else None


def _shown(x: Any) -> str:
    if not isinstance(x, Tensor):
        return "None" if x is None else f"a {type(x).__name__}"
    return f"a tensor of {tuple(x.shape)}, {str(x.dtype).removeprefix('torch.')} on {x.device}"
