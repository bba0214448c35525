"""What one forward pass of a module does: its operations, the tensors that they read and make, the modules they are in.

Tensors have numbers, in the order in which they are seen. One that is changed in place gets another number.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from typing_extensions import override

from ...attention.call import AttentionCall
from ..anatomy.modules import removed_after
from .listening import SDPA, Listener, Place

ADD = frozenset({torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__iadd__, Tensor.__radd__})
MULTIPLY = frozenset({torch.mul, Tensor.mul, Tensor.mul_, Tensor.__mul__, Tensor.__imul__, Tensor.__rmul__})
_ONLY_SHAPES = frozenset({torch.ones_like, torch.zeros_like, torch.empty_like, torch.full_like})


@dataclass(frozen=True)
class Operation:
    """One call of a torch function, with the numbers of the tensors that it reads and makes."""

    place: Place
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def operands(self) -> tuple[int, int] | None:
        """The two tensors that are added; None for another operation, and for a tensor plus a number."""
        is_sum = self.place[1] in ADD and len(self.args) > 1
        both = is_sum and all(isinstance(arg, Tensor) for arg in self.args[:2])
        return (self.inputs[0], self.inputs[1]) if both else None


@dataclass
class Visit:
    """One call of a module: its name, how many operations came before it and its end, what it took and returned."""

    name: str
    module: nn.Module
    start: int
    inputs: tuple[int, ...]
    end: int = 0
    outputs: tuple[int, ...] = ()


@dataclass
class Record:
    """A forward pass on `tokens`. shapes: of every tensor, by its number; the tokens have number 0."""

    tokens: Tensor
    operations: list[Operation] = field(default_factory=list)
    visits: list[Visit] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)  # kept, so that no other tensor takes the same address

    def __post_init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self.number(self.tokens)

    def number(self, x: Tensor, is_new: bool = False) -> int:
        """The number of a tensor, another one than before where it is new."""
        if is_new or id(x) not in self._numbers:
            self._numbers[id(x)] = len(self.shapes)
            self.shapes.append(tuple(x.shape))
            self.tensors.append(x)
        return self._numbers[id(x)]

    def numbers(self, *values: Any) -> tuple[int, ...]:
        """The numbers of all tensors in some arguments."""
        return tuple(self.number(x) for x in tree_leaves(values) if isinstance(x, Tensor))

    @cached_property
    def maker(self) -> dict[int, int]:
        """Which operation made a tensor."""
        return {x: i for i, operation in enumerate(self.operations) for x in operation.outputs}

    def ancestors(self, *numbers: int) -> set[int]:
        """The tensors themselves, and all that they are made of."""
        found, waiting = set[int](), list(numbers)
        while waiting:
            x = waiting.pop()
            if x not in found:
                found.add(x)
                waiting += self.operations[self.maker[x]].inputs if x in self.maker else ()
        return found

    @cached_property
    def descends(self) -> list[int]:
        """Of every tensor, a number whose bit 0 says that it depends on the tokens, bit i + 1 on attention call i."""
        bits = [0] * len(self.shapes)
        bits[0], calls = 1, 0
        for operation in self.operations:
            made = 0
            for x in operation.inputs if operation.place[1] not in _ONLY_SHAPES else ():
                made |= bits[x]
            if operation.place[1] is SDPA:
                calls += 1
                made |= 1 << calls
            for x in operation.outputs:
                bits[x] |= made
        return bits

    def changed(self, operation: Operation) -> list[int]:
        """The tensors that an operation changes in place."""
        given = [self.tensors[x] for x in operation.inputs]
        return [x for x in operation.outputs if any(self.tensors[x] is one for one in given)]

    def is_made_of_tokens(self, x: int) -> bool:
        """Whether a tensor depends on the tokens."""
        return bool(self.descends[x] & 1)

    def is_made_of_call(self, x: int, call: int) -> bool:
        """Whether a tensor depends on what an attention call returns."""
        return bool(self.descends[x] >> (call + 1) & 1)

    def is_stream(self, x: int) -> bool:
        """Whether a tensor has the shape of a residual stream: (batch, pos, d_model) or (pos, batch, d_model)."""
        size, shape = tuple(self.tokens.shape), self.shapes[x]
        return len(shape) == 3 and shape[:2] in (size, size[::-1])

    def place(self, x: int) -> Place:
        """What made a tensor."""
        return self.operations[self.maker[x]].place

    def terms(self, x: int) -> tuple[int, ...]:
        """The two tensors made of tokens of which a tensor is the sum; none for another tensor."""
        operands = self.operations[self.maker[x]].operands if x in self.maker else None
        return operands if operands and all(map(self.is_made_of_tokens, operands)) else ()

    @property
    def calls(self) -> list[int]:
        """The operations that are attention calls."""
        return [i for i, operation in enumerate(self.operations) if operation.place[1] is SDPA]


class _Recording(Listener):
    def __init__(self, name: str, record: Record) -> None:
        super().__init__(name)
        self.record = record

    @override
    def attend(self, call: AttentionCall, *args: Any, **kwargs: Any) -> Tensor:
        return self.operate((self.n_attended, SDPA, 0), args, kwargs)

    @override
    def operate(self, place: Place, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        inputs, versions = self.record.numbers(*given), [x._version for x in given]
        out = place[1](*args, **kwargs)
        changed = [x for x, version in zip(given, versions, strict=True) if x._version != version]
        made = [x for x in tree_leaves(out) if isinstance(x, Tensor) and not any(x is one for one in given)]
        outputs = tuple(self.record.number(x, is_new=True) for x in (*changed, *made))
        if outputs:
            self.record.operations.append(Operation(place, args, kwargs, inputs, outputs))
        return out


@contextmanager
def recording(name: str, model: nn.Module, tokens: Tensor) -> Iterator[Record]:
    """Inside, what the model does is recorded; see `Record`."""
    record = Record(tokens)
    names = {module: name for name, module in model.named_modules() if name}
    handles = [
        module.register_forward_pre_hook(partial(_enter, record, name), with_kwargs=True)
        for module, name in names.items()
    ]
    handles += [module.register_forward_hook(partial(_leave, record)) for module in names]
    with removed_after(handles), _Recording(name, record):
        yield record


def _enter(record: Record, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
    record.visits.append(Visit(name, module, len(record.operations), record.numbers(args, kwargs)))


def _leave(record: Record, module: nn.Module, args: Any, output: Any) -> None:
    visit = next(visit for visit in reversed(record.visits) if visit.module is module and not visit.end)
    visit.end, visit.outputs = len(record.operations), record.numbers(output)
