"""Names for the shapes of tensors that several packages share, and the sizes of a model.

Axes: batch (sequences), head, query, key, pos.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, is_dataclass
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..checks import InputError, accepting

Residual = Float[Tensor, "batch pos d_model"]
Queries = Float[Tensor, "batch head query d_head"]
Keys = Float[Tensor, "batch kv_head key d_head"]
Values = Float[Tensor, "batch kv_head key d_value"]
Scores = Float[Tensor, "batch head query key"]
Pattern = Float[Tensor, "batch head query column"]  # a column is a key, or the slot, which comes first
PerQuery = Float[Tensor, "batch head query"]  # one number for each query
HeadOutput = Float[Tensor, "batch head query d_value"]
Allowed = Bool[Tensor, "#batch #head query key"]
KeyIndex = Int[Tensor, " some_key"]
SomePairs = Float[Tensor, "batch head some_query some_key"]  # one number for each pair of some queries and some keys
SomeAllowed = Bool[Tensor, "#batch #head some_query some_key"]
KeyMass = Float[Tensor, "batch head some_key"]


def numbers(given: Any, axes: str, what: str) -> Tensor:
    """The tensor itself. Raises InputError, which calls it `what`, unless it holds real numbers along these axes.

    axes: their names, such as "sequence pos d_model"; "..." for any number of them.
    """
    named = [axis for axis in axes.split() if axis != "..."]
    if isinstance(given, Tensor) and not given.is_complex() and given.dtype != torch.bool and not given.is_meta:
        rank = given.ndim if "..." in axes else len(named)
        if len(named) <= given.ndim == rank:
            return given
        got = f"a tensor of {tuple(given.shape)}"
    else:
        got = f"{given.dtype} on {given.device}" if isinstance(given, Tensor) else f"a {type(given).__name__}"
    raise InputError(f"{what} are a tensor of real numbers `{axes}`; got {got}; torch.as_tensor makes one of a list")


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model.

    attention_layers: indices of the blocks that attend, among all `n_layers` blocks.
    mlp_layers: indices of those whose feed-forward layer can be seen and edited. d_mlp: how many neurons it has, where
    they can be.
    d_head: of queries and keys. d_model: of residuals.
    n_ctx: the longest sequence that its configuration knows; None without a limit.
    d_embedding: of the token table, where it is not d_model (OPT-350m). d_value: of values, where it is not d_head.
    """

    n_layers: int
    attention_layers: tuple[int, ...]
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_model: int
    vocab: int
    n_ctx: int | None = None
    mlp_layers: tuple[int, ...] = ()
    d_embedding: int | None = None
    d_value: int | None = None
    d_mlp: int | None = None


def alike(answer: Any, x: Tensor, who: str) -> Tensor:
    """The answer. Raises InputError unless it is a tensor of the shape, dtype and device of `x`."""
    if answer is not x and _kind(answer) != _kind(x):
        raise InputError(f"{who} returned {_described(answer)}; it must return {_described(x)}")
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


Door = TypeVar("Door", bound=Callable[..., Any])


def with_users_frames(door: Door) -> Door:
    """The function; an error of what it has `called` shows the frames of that, and not ours and torch's above."""

    @wraps(door)
    def shown(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        try:
            return door(*args, **kwargs)
        except Exception as error:
            frame = of_users = error.__traceback__
            while frame:
                is_ours = frame.tb_frame.f_code is called.__code__ or "__tracebackhide__" in frame.tb_frame.f_locals
                frame = frame.tb_next
                of_users = frame if is_ours else of_users
            raise error.with_traceback(of_users)  # noqa: B904  it is the same error

    return cast(Door, shown)


def per_sequence(answer: Any, n: int | None, who: str, axes: int | None = None, fix: str = "") -> Tensor:
    """The answer. Raises InputError unless it is a tensor whose first axis counts the sequences, `n` of them if known.

    axes: how many there must be; by default one or more.
    """
    is_tensor = isinstance(answer, Tensor) and answer.ndim and n in (None, len(answer))
    if not is_tensor or axes not in (None, answer.ndim):
        what = "a number for each sequence" if axes == 1 else "a tensor whose first axis is the sequence"
        here = "" if n is None else f", here {n}"
        raise InputError(f"{who} returned {_described(answer)}; it must return {what}{here}{fix and f'; {fix}'}")
    return answer


def check_kept(is_kept: bool, who: str) -> None:
    """Raises InputError, which names a function, where it did not keep what it was given."""
    if not is_kept:
        raise InputError(f"{who} changes what it is given, in place; take a copy first, x.clone()")


class Unchanged:
    """Calls functions of a value, and raises InputError where one changes the tensors in it, in place."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.tensors = [x for x in tensors_in(value) if not x.is_inference()]  # which count no changes

    def shown_to(self, function: Callable[..., Any], who: str, *arguments: Any) -> Any:
        """What the function returns for the arguments and the value."""
        before = self._version()
        answer = called(function, who, *arguments, self.value)
        check_kept(self._version() == before, who)
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


def _described(x: Any) -> str:
    if not isinstance(x, Tensor):
        return "None" if x is None else f"a {type(x).__name__}"
    return f"a tensor of {tuple(x.shape)}, {str(x.dtype).removeprefix('torch.')} on {x.device}"


TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8}  # of logits; else 0.1


def tolerance_of(dtype: torch.dtype) -> float:
    """Which share of the largest logit the others may be off, in a model of this dtype."""
    return TOLERANCE.get(dtype, 0.1)


@dataclass(frozen=True)
class Gap:
    """The largest difference between two tensors, and the largest entry of the one that is right."""

    difference: float
    size: float

    @staticmethod
    def of(given: Tensor, right: Tensor) -> "Gap":
        """The gap between what is given and what is right; infinite where the shapes differ, or NaNs are at odds."""
        if given.shape != right.shape or not given.isnan().equal(right.isnan()):
            return Gap(torch.inf, 0.0)
        if not right.numel():
            return Gap(0.0, 0.0)
        difference = torch.where(given == right, 0, (given - right).abs()).nan_to_num(0, torch.inf)
        return Gap(difference.max().item(), right.abs().nan_to_num(0).max().item())

    def check(self, tolerance: float, what: str, fix: str = "") -> None:
        """Raises InputError, which says `what` is wrong and the fix, where the difference is a larger share."""
        if not self.is_within(tolerance):
            raise InputError(f"{what}, {self}{fix and f'; {fix}'}")

    def is_within(self, tolerance: float) -> bool:
        """Whether the difference is at most this share of the size."""
        return self.difference <= tolerance * self.size

    def __str__(self) -> str:
        return f"off by {self.difference:.3g} where the largest is {self.size:.3g}"
