"""Listens to the torch functions that a module calls, attention among them, and records one pass.

A record has its operations, the tensors that they read and make, and the modules they are in. Tensors have numbers, in
the order in which they are seen. One that is changed in place gets another number.
"""

import types
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ...attention import AttentionCall, call_of_interface
from ...checks import Frozen, InputError
from ..anatomy.modules import removed_after

SDPA, MULTI_HEAD = F.scaled_dot_product_attention, F.multi_head_attention_forward
NEVER = -1e4  # exp(-1e4) is 0 in any dtype: an additive mask that is lower forbids its pair
Place = tuple[int, Any, int]  # attention calls before an operation, its function, how many such calls since attention

# nn.MultiheadAttention hides its attention call inside one function: this is a copy that lets a mode see it
_SEEN_MULTI_HEAD = types.FunctionType(
    MULTI_HEAD.__code__, {**F.__dict__, "has_torch_function": lambda tensors: False}, None, MULTI_HEAD.__defaults__
)


class Listener(TorchFunctionMode):
    """A mode of torch functions: `attend` computes every attention call, `operate` the other functions in `heard`.

    name: the model's, for messages. heard: None for all functions. The other functions run as they are.
    """

    def __init__(self, name: str, heard: set[Any] | None = None) -> None:
        super().__init__()
        self.name = name
        self.heard = None if heard is None else {*heard, SDPA, MULTI_HEAD}
        self.n_attended = 0
        self.counts: Counter[tuple[int, Any]] = Counter()  # calls of each function after so many attention calls
        self._last_call: AttentionCall | None = None

    def attend(self, call: AttentionCall, *args: Any, **kwargs: Any) -> Tensor:
        """What the heads of a call return, `batch head query d_value`. The arguments are those of torch's function."""
        raise NotImplementedError

    def operate(self, place: Place, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What another function returns for these arguments."""
        raise NotImplementedError

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.heard is not None and func not in self.heard:
            return func(*args, **kwargs)
        if func is MULTI_HEAD:
            return self._multi_head(*args, **kwargs)
        if func is not SDPA:
            self.counts[self.n_attended, func] += 1
            return self.operate((self.n_attended, func, self.counts[self.n_attended, func] - 1), args, kwargs)
        self._last_call = call = call_of_sdpa(self.name, *args, **kwargs)
        z = self.attend(call, *args, **kwargs)
        self.n_attended += 1
        return z

    def _multi_head(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        needs_weights = kwargs.get("need_weights", True)
        with self:
            out, _ = _SEEN_MULTI_HEAD(*args, **kwargs | {"need_weights": False})
        if not needs_weights or self._last_call is None:
            return out, None
        weights = self._last_call.pattern()
        return out, weights.mean(1) if kwargs.get("average_attn_weights", True) else weights


def call_of_sdpa(  # noqa: PLR0913  the arguments of torch's function
    name: str, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> AttentionCall:  # fmt: skip
    """The call that `scaled_dot_product_attention` was asked to compute, as layer 0. name: the model's, for messages.

    A mask that allows exactly what causal attention allows is None. Raises InputError for dropout, for heads that are
    not an axis of their own, and for queries that continue a cache of keys.
    """
    if dropout_p or query.ndim != 4 or query.shape[2] != key.shape[2]:
        kinds = {
            "drops attention weights at random, also outside training": bool(dropout_p),
            "attends one head at a time, or with heads and sequences in one axis": query.ndim != 4,
        }
        why = next(
            (what for what, is_so in kinds.items() if is_so), "attends to more keys than queries, as with a cache"
        )
        raise InputError(f"{name} {why}; run it without that, or give attention=AttentionOf(...)")
    if attn_mask is not None:
        attn_mask = attn_mask.view((1,) * (4 - attn_mask.ndim) + attn_mask.shape)
        if attn_mask.dtype != torch.bool:
            attn_mask = attn_mask.masked_fill(attn_mask < NEVER, -torch.inf)
    call = call_of_interface(0, query, key, value, attn_mask, scale, is_causal=is_causal)
    is_causal = call.mask is not None and call.mask.equal(torch.ones_like(call.mask).tril())
    return replace(call, mask=None) if is_causal else call


# The record of a pass

ADD = frozenset({torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__iadd__, Tensor.__radd__})
MULTIPLY = frozenset({torch.mul, Tensor.mul, Tensor.mul_, Tensor.__mul__, Tensor.__imul__, Tensor.__rmul__})
_ONLY_SHAPES = frozenset({torch.ones_like, torch.zeros_like, torch.empty_like, torch.full_like})
INTEGERS = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


class Operation(Frozen):
    """One call of a torch function, with the numbers of the tensors that it reads and makes."""

    place: Place
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def pair(self) -> tuple[int, ...]:
        """The numbers of the first two arguments; none unless both are tensors."""
        is_pair = len(self.args) > 1 and all(isinstance(arg, Tensor) for arg in self.args[:2])
        return self.inputs[:2] if is_pair else ()


@dataclass
class Visit:
    """One call of a module: the residual streams that it took and returned, the operations before it and its end."""

    name: str
    module: nn.Module
    inputs: tuple[int, ...]
    start: int
    end: int = 0
    outputs: tuple[int, ...] = ()


@dataclass
class Record:
    """A forward pass of a model on `tokens`, which have number 0. name: the model's, for messages.

    maker: which operation made a tensor. ancestors: of every tensor, a number whose bit i says that it is made of
    tensor i, or is it. calls: the operations that are attention calls. counts: see `Listener`.
    """

    name: str
    model: nn.Module
    tokens: Tensor
    operations: list[Operation] = field(default_factory=list)
    visits: list[Visit] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)  # kept, so that no other tensor takes the same address
    maker: dict[int, int] = field(default_factory=dict)
    ancestors: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    counts: Counter[tuple[int, Any]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._open: list[Visit] = []
        self._names = {id(x): name for name, x in (*self.model.named_parameters(), *self.model.named_buffers())}
        self.number(self.tokens)

    def number(self, x: Tensor, is_new: bool = False) -> int:
        """The number of a tensor, another one than before where it is new."""
        if is_new or id(x) not in self._numbers:
            self._numbers[id(x)] = len(self.tensors)
            self.ancestors.append(1 << len(self.tensors))
            self.tensors.append(x)
        return self._numbers[id(x)]

    def add(self, operation: Operation) -> None:
        """Adds the next operation."""
        if operation.place[1] is SDPA:
            self.calls.append(len(self.operations))
        for out in operation.outputs:
            self.maker[out] = len(self.operations)
            for x in operation.inputs if operation.place[1] not in _ONLY_SHAPES else ():
                self.ancestors[out] |= self.ancestors[x]
        self.operations.append(operation)

    def is_made_of(self, x: int, ancestor: int = 0) -> bool:
        """Tells if a tensor is made of another one, by default of the tokens."""
        return ancestor >= 0 and bool(self.ancestors[x] >> ancestor & 1)

    def is_stream(self, x: int) -> bool:
        """Tells if a tensor may be a residual stream: of tokens, (batch, pos, d_model) or (pos, batch, d_model)."""
        size, shape = self.tokens.shape, self.tensors[x].shape
        return len(shape) == 3 and shape[:2] in (size, size[::-1]) and self.is_made_of(x)

    def terms(self, x: int) -> tuple[int, ...]:
        """The two tensors made of tokens of which a tensor is the sum; none for another tensor."""
        operation = self.operations[self.maker[x]] if x in self.maker else None
        pair = operation.pair if operation is not None and operation.place[1] in ADD else ()
        return pair if all(map(self.is_made_of, pair)) else ()

    def parts(self, x: int) -> Iterator[int]:
        """A tensor, and all tensors that it is the sum of."""
        yield x
        for term in self.terms(x):
            yield from self.parts(term)

    def source(self, x: int) -> tuple[str, Tensor] | None:
        """The parameter or buffer of two axes or more that a tensor is read from, with its name; None without one."""
        read = (y for i, y in enumerate(self.tensors) if self.is_made_of(x, i) and id(y) in self._names)
        return next(((self._names[id(y)], y) for y in read if y.ndim > 1 and y.dtype not in INTEGERS), None)

    def enter(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A forward pre-hook."""
        self._open.append(Visit(name, module, self._streams(args, kwargs), len(self.operations)))
        self.visits.append(self._open[-1])

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        """A forward hook."""
        visit = self._open.pop()
        visit.end, visit.outputs = len(self.operations), self._streams(output)

    def _streams(self, *values: Any) -> tuple[int, ...]:
        numbers = [self.number(x) for x in tree_leaves(values) if isinstance(x, Tensor)]
        return tuple(x for x in numbers if self.is_stream(x))


class _Recording(Listener):
    def __init__(self, record: Record) -> None:
        super().__init__(record.name)
        self.record, self.counts = record, record.counts

    def attend(self, call: AttentionCall, *args: Any, **kwargs: Any) -> Tensor:
        return self.operate((self.n_attended, SDPA, 0), args, kwargs)

    def operate(self, place: Place, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        inputs, versions = tuple(map(self.record.number, given)), [x._version for x in given]
        out = place[1](*args, **kwargs)
        made = [x for x, version in zip(given, versions, strict=True) if x._version != version]  # in place
        made += [x for x in tree_leaves(out) if isinstance(x, Tensor) and not any(x is one for one in given)]
        outputs = tuple(self.record.number(x, is_new=True) for x in made)
        if outputs:
            self.record.add(Operation(place, args, kwargs, inputs, outputs))
        return out


@contextmanager
def recording(name: str, model: nn.Module, tokens: Tensor) -> Iterator[Record]:
    """In the block, what the model does is recorded; see `Record`."""
    record = Record(name, model, tokens)
    named = [(where, module) for where, module in model.named_modules() if where]
    handles = [m.register_forward_pre_hook(partial(record.enter, where), with_kwargs=True) for where, m in named]
    handles += [module.register_forward_hook(record.leave) for _, module in named]
    with removed_after(handles), _Recording(record):
        yield record
