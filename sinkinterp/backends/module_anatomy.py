"""The anatomy of a module, from one recorded pass: where it makes residuals, updates, embeddings and positions.

A listener hears the torch functions that a module calls, attention among them. A record of a pass has its operations,
the tensors that they read and make, and the modules they are in. Tensors have numbers, in the order in which they are
seen. One that is changed in place gets another number.
"""

import types
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from re import sub
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ..attention import AttentionCall, call_of_interface
from ..checks import InputError, refuse_first
from .anatomy import removed_after

SDPA, MULTI_HEAD = F.scaled_dot_product_attention, F.multi_head_attention_forward
NEVER = -1e4  # exp(-1e4) is 0 in any dtype: an additive mask that is lower forbids its pair
Place = tuple[int, Any, int]  # attention calls before an operation, its function, how many such calls since attention

# nn.MultiheadAttention hides its attention call inside one function: this is a copy that lets a mode see it
_SEEN_MULTI_HEAD = types.FunctionType(
    MULTI_HEAD.__code__, {**F.__dict__, "has_torch_function": lambda tensors: False}, None, MULTI_HEAD.__defaults__
)


class Listener(TorchFunctionMode):
    """A mode of torch functions: `attend` computes every attention call, `operate` the other functions.

    name: the model's, for messages.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
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
        if func is MULTI_HEAD:
            return self._multi_head(*args, **kwargs)
        if func is not SDPA:
            place = (self.n_attended, func, self.counts[self.n_attended, func])
            self.counts[self.n_attended, func] += 1
            return self.operate(place, args, kwargs)
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
    faults = {
        "drops attention weights at random, also outside training": bool(dropout_p),
        "attends one head at a time, or with heads and sequences in one axis": query.ndim != 4,
        "attends to more keys than queries, as with a cache": query.shape[-2] != key.shape[-2],
    }
    refuse_first(faults, name, "run it without that, or give parts=ModuleParts(attention=AttentionOf(...))")
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


@dataclass(frozen=True)
class Operation:
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


class Record(Listener):
    """What a model does in one forward pass on `tokens`, which have number 0.

    maker: which operation made a tensor. ancestors: of every tensor, a number whose bit i says that it is made of
    tensor i, or is it.
    """

    def __init__(self, name: str, model: nn.Module, tokens: Tensor) -> None:
        super().__init__(name)
        self.tokens = tokens
        self.operations: list[Operation] = []
        self.visits: list[Visit] = []
        self.tensors: list[Tensor] = []  # kept, so that no other tensor takes the same address
        self.maker: dict[int, int] = {}
        self.ancestors: list[int] = []
        self._numbers: dict[int, int] = {}
        self._open: list[Visit] = []
        self._names = {id(x): name for name, x in (*model.named_parameters(), *model.named_buffers())}
        self._number(tokens)

    @property
    def calls(self) -> list[int]:
        """The operations that are attention calls."""
        return [i for i, operation in enumerate(self.operations) if operation.place[1] is SDPA]

    def attend(self, call: AttentionCall, *args: Any, **kwargs: Any) -> Tensor:
        return self.operate((self.n_attended, SDPA, 0), args, kwargs)

    def operate(self, place: Place, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        inputs, versions = tuple(map(self._number, given)), [x._version for x in given]
        out = place[1](*args, **kwargs)
        made = [x for x, version in zip(given, versions, strict=True) if x._version != version]  # in place
        made += [x for x in tree_leaves(out) if isinstance(x, Tensor) and not any(x is other for other in given)]
        outputs = tuple(self._number(x, is_new=True) for x in made)
        for number in outputs:
            self.maker[number] = len(self.operations)
            for x in inputs if place[1] not in _ONLY_SHAPES else ():
                self.ancestors[number] |= self.ancestors[x]
        if outputs:
            self.operations.append(Operation(place, args, kwargs, inputs, outputs))
        return out

    def _number(self, x: Tensor, is_new: bool = False) -> int:
        """The number of a tensor, another one than before where it is new."""
        if is_new or id(x) not in self._numbers:
            self._numbers[id(x)] = len(self.tensors)
            self.ancestors.append(1 << len(self.tensors))
            self.tensors.append(x)
        return self._numbers[id(x)]

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
        numbers = [self._number(x) for x in tree_leaves(values) if isinstance(x, Tensor)]
        return tuple(x for x in numbers if self.is_stream(x))


@contextmanager
def recording(name: str, model: nn.Module, tokens: Tensor) -> Iterator[Record]:
    """In the block, what the model does is recorded; see `Record`."""
    record = Record(name, model, tokens)
    named = [(where, module) for where, module in model.named_modules() if where]
    handles = [m.register_forward_pre_hook(partial(record.enter, where), with_kwargs=True) for where, m in named]
    handles += [module.register_forward_hook(record.leave) for _, module in named]
    with removed_after(handles), record:
        yield record


NOWHERE = -1  # the number of no tensor
_SOFTMAX = frozenset({F.softmax, torch.softmax, Tensor.softmax})


@dataclass(frozen=True)
class Operand:
    """One of the two tensors that an operation adds or multiplies; `number` is its number in the record.

    factor: what the operation multiplies it by. For one that has a row for each position, rank, pos_axis and batch_axis
    are the result's. `source` then names the parameter or buffer that it is read from, empty where it is computed.
    `is_table` says whether it is the first rows of that.
    """

    place: Place
    number: int
    index: int
    factor: float = 1.0
    rank: int = 3
    pos_axis: int = 1
    batch_axis: int = 0
    source: str = ""
    is_table: bool = False


@dataclass(frozen=True)
class Anatomy:
    """Where things are in a pass.

    residuals: what makes the input of every block, and what the last block returns. layers: the block of each call.
    blocks: names of their modules; empty if blocks are not modules. tokens: what reads the table of tokens, whose
    weight is named `table`. positions: what is added to the tokens' embeddings; None without such positions.
    turns: the operands that depend on positions and not on tokens. updates: those that feed-forward layers add, by
    block; None where not found. is_batch_first, are_tokens_batch_first: whether the stream and what the table of tokens
    returns are (batch, pos, d_model), not (pos, batch, d_model). d_model: of the stream. counts: see `Listener`.
    """

    residuals: tuple[Place, ...]
    layers: tuple[int, ...]
    blocks: str
    tokens: Place
    table: str
    positions: Operand | None
    turns: tuple[Operand, ...]
    updates: tuple[Operand | None, ...]
    is_batch_first: bool
    are_tokens_batch_first: bool
    d_model: int
    counts: Counter[tuple[int, Any]]


def anatomy_of(record: Record, blocks: str | None = None, positions: str | None = None) -> Anatomy:
    """The anatomy of a model. blocks, positions: names of modules or parameters that the user chose.

    Raises InputError where it is not found or ambiguous, with what to choose from.
    """
    calls = _calls(record)
    visits, layers = _blocks(record, calls, blocks)
    inputs = [visit.inputs[0] for visit in visits] or [call.start for call in calls]
    stream = (*inputs, _grown(record, visits[-1].outputs[0] if visits else calls[-1].total))
    lookup, table = _token_lookup(record, stream[0])
    turns = _turns(record)
    *shape, d_model = record.tensors[stream[-1]].shape
    return Anatomy(
        residuals=tuple(record.operations[record.maker[x]].place for x in stream),
        layers=layers,
        blocks=" and ".join(dict.fromkeys(f"{_list_of(visit)}.*".lstrip(".") for visit in visits)),
        tokens=lookup.place,
        table=table,
        positions=_learned_positions(record, stream[0], turns, positions),
        turns=turns,
        updates=tuple(_updates(record, stream, calls, layers)),
        is_batch_first=shape == list(record.tokens.shape),
        are_tokens_batch_first=record.tensors[lookup.outputs[0]].shape[:2] == record.tokens.shape,
        d_model=d_model,
        counts=record.counts,
    )


# The residual stream: what attention returns is added to what its queries, keys and values are made of


@dataclass(frozen=True)
class Call:
    """An attention call: its operation, its output, the residual that it starts from, and the sum of the two.

    The last two are NOWHERE where no such sum is found, as where the residual is scaled first.
    """

    at: int
    z: int
    start: int = NOWHERE
    total: int = NOWHERE


def _calls(record: Record) -> list[Call]:
    square = (record.tokens.shape[1],) * 2
    made = {i: record.tensors[x.outputs[0]] for i, x in enumerate(record.operations) if x.place[1] in _SOFTMAX}
    written = [i for i, weights in made.items() if weights.shape[-2:] == square]
    if written or not record.calls:
        inside = [[v.name for v in record.visits if v.start <= i < v.end] for i in written]
        names = dict.fromkeys(sub(r"\d+", "*", around[-1]) for around in inside if around)
        often = "only sometimes" if record.calls else "no"
        where = f" (softmax is written out in {' and '.join(names)})" if names else ""
        fix = "describe its attention: parts=ModuleParts(attention=AttentionOf(...))"
        raise InputError(f"{record.name} calls {often} scaled_dot_product_attention{where}; {fix}")
    return [_call(record, at) for at in record.calls]


def _call(record: Record, at: int) -> Call:
    z, (q, k, v) = record.operations[at].outputs[0], record.operations[at].inputs[:3]
    sources = record.ancestors[q] & record.ancestors[k] & record.ancestors[v]
    for total in (later.outputs[0] for later in record.operations[at:]):
        terms = record.terms(total)
        from_call = [record.is_made_of(x, z) for x in terms]
        if from_call.count(True) == 1 and record.is_stream(total):
            start = [x for x in record.parts(terms[from_call.index(False)]) if sources >> x & 1 and record.is_stream(x)]
            if start:
                return Call(at, z, start[0], total)
    return Call(at, z)


def _blocks(record: Record, calls: Sequence[Call], wanted: str | None) -> tuple[list[Visit], tuple[int, ...]]:
    """The calls of the modules that are blocks, and the block of each attention call.

    Blocks are the modules of the innermost list in which each holds one call with its sum, and others of their kind.
    Without such a list each call is a block, and blocks are not modules.
    """
    lists: dict[str, list[Visit]] = defaultdict(list)
    for visit in record.visits:
        if visit.inputs and visit.outputs:
            lists[_list_of(visit)].append(visit)
    holding = {key: _holding(record, calls, visits) for key, visits in lists.items()}
    fitting = [key for key, blocks in holding.items() if len(blocks) == len(calls)]
    is_lost = wanted is None and any(call.start == NOWHERE for call in calls)
    if is_lost or (wanted is not None and wanted not in fitting):
        choices = " or ".join(
            f"parts=ModuleParts(blocks={key!r}) ({len(lists[key])} modules)" for key in fitting if key
        )
        choice = f"choose {choices}" if choices else "no list of its modules fits"
        what = "attention is added to nothing, or the stream is scaled or gated"
        what = what if is_lost else f"blocks={wanted!r} lacks some of it"
        raise InputError(f"{record.name}: {what}; {choice}")
    single = [key for key in fitting if len(set(holding[key])) == len(calls)]
    key = max(single, key=len, default=None) if wanted is None else wanted
    if key is None:
        return [], tuple(range(len(calls)))
    kinds = {type(lists[key][block].module) for block in holding[key]}
    blocks = [i for i, visit in enumerate(lists[key]) if wanted is not None or type(visit.module) in kinds]
    return [lists[key][i] for i in blocks], tuple(map(blocks.index, holding[key]))


def _holding(record: Record, calls: Sequence[Call], visits: list[Visit]) -> list[int]:
    """Which visits hold the calls with their sums."""

    def holds(visit: Visit, call: Call) -> bool:
        if call.start != NOWHERE and not record.is_made_of(call.start, visit.inputs[0]):
            return False
        end = call.at if call.start == NOWHERE else record.maker[call.total]
        return visit.start <= call.at and end < visit.end

    return [i for call in calls for i, visit in enumerate(visits) if holds(visit, call)]


def _list_of(visit: Visit) -> str:
    return visit.name.rpartition(".")[0]


def _grown(record: Record, x: int) -> int:
    """What a residual becomes when updates that are made of it are added to it."""
    for total in (operation.outputs[0] for operation in record.operations):
        terms = record.terms(total)
        if x in terms and record.is_made_of(terms[1 - terms.index(x)], x) and record.is_stream(total):
            x = total
    return x


# Feed-forward updates


def _updates(
    record: Record, stream: Sequence[int], calls: Sequence[Call], layers: Sequence[int]
) -> Iterator[Operand | None]:
    """The update of each block's feed-forward layer, if it is one of the terms that are added to the stream."""
    for block, (start, end) in enumerate(pairwise(stream)):
        inside = [call for call, layer in zip(calls, layers, strict=True) if layer == block]
        updates = [
            term
            for term in _terms(record, end, start)
            if all(record.is_made_of(term.number, c.total) or not record.is_made_of(term.number, c.z) for c in inside)
        ]
        yield updates[0] if len(updates) == 1 else None


def _terms(record: Record, x: int, start: int) -> Iterator[Operand]:
    """All that is added to `start` on the way to `x`."""
    for index, number in enumerate(record.terms(x) if x != start else ()):
        if number != start and record.terms(number):
            yield from _terms(record, number, start)
        elif number != start:
            operation = record.operations[record.maker[x]]
            yield Operand(operation.place, number, index, float(operation.kwargs.get("alpha", 1) if index else 1))


# Embeddings and positions


def _token_lookup(record: Record, start: int) -> tuple[Operation, str]:
    """The operation that looks tokens up in their table, and the name of the table's weight."""
    embeddings = [operation for operation in record.operations if operation.place[1] is F.embedding]
    lookups = [o for o in embeddings if record.is_made_of(o.inputs[0]) and record.is_made_of(start, o.outputs[0])]
    sources = [source for lookup in lookups if (source := record.source(lookup.inputs[1])) is not None]
    if len(lookups) != 1 or not sources:
        raise InputError(f"{record.name} looks tokens up in {len(sources)} tables; give one F.embedding of the ids")
    return lookups[0], sources[0][0]


def _turns(record: Record) -> tuple[Operand, ...]:
    """Operands with a row for each position that do not depend on tokens, beside one that does.

    None where positions also reach tokens through other functions: those of a part of them cannot be moved.
    """
    turns = [_turn(record, operation) for operation in record.operations]
    others = (o for o, turn in zip(record.operations, turns, strict=True) if turn is None)
    return () if any(_mixes_positions(record, o) for o in others) else tuple(filter(None, turns))


def _turn(record: Record, operation: Operation) -> Operand | None:
    batch, length = record.tokens.shape
    of_tokens = [record.is_made_of(x) for x in operation.pair]
    shape = record.tensors[operation.outputs[0]].shape
    if operation.place[1] not in ADD | MULTIPLY or of_tokens.count(True) != 1 or batch not in shape:
        return None
    index = of_tokens.index(False)
    number, rows = operation.pair[index], with_axes(operation.args[index], len(shape))
    axes = [axis for axis, size in enumerate(rows.shape) if size == shape[axis] == length]
    if len(axes) != 1:
        return None
    batch_axis, (source, table) = shape.index(batch), record.source(number) or ("", None)
    is_table = table is not None and _are_first(table, rows.narrow(batch_axis, 0, 1), axes[0])
    return Operand(
        operation.place, number, index, rank=len(shape), pos_axis=axes[0], batch_axis=batch_axis, source=source,
        is_table=is_table,
    )  # fmt: skip


def _mixes_positions(record: Record, operation: Operation) -> bool:
    """Whether an operation combines tokens with numbers that have an axis as long as the sequence."""
    if operation.place[1] is SDPA or not record.is_made_of(operation.outputs[0]):
        return False
    others = [record.tensors[x] for x in operation.inputs if not record.is_made_of(x)]
    return any(record.tokens.shape[1] in x.shape and x.dtype not in INTEGERS for x in others)


def _are_first(table: Tensor, rows: Tensor, axis: int) -> bool:
    """Whether these are the first rows of a table."""
    if table.ndim > rows.ndim:
        return False
    return with_axes(table, rows.ndim).movedim(axis, 0)[: rows.shape[axis]].movedim(0, axis).equal(rows)


def _learned_positions(record: Record, start: int, turns: Sequence[Operand], wanted: str | None) -> Operand | None:
    """The positions that are added to the tokens' embeddings; None without such positions."""
    made = {operation.place: operation.outputs[0] for operation in record.operations if operation.place[1] in ADD}
    sums = [turn for turn in turns if turn.place in made]
    added = [t for t in sums if record.is_stream(made[t.place]) and record.is_made_of(start, made[t.place])]
    by_name = {turn.source.removesuffix(".weight") or "computed": turn for turn in added}
    if wanted not in by_name and (wanted is not None or len(by_name) > 1):
        choices = " or ".join(f"parts=ModuleParts(positions={other!r})" for other in by_name) or "none"
        raise InputError(f"{record.name} adds to the tokens' embeddings: {choices}; name one of these")
    return by_name.get(wanted or next(iter(by_name), ""))


def with_axes(x: Tensor, rank: int) -> Tensor:
    """The tensor with axes of size 1 before its own, so that it has `rank` axes."""
    return x.reshape((1,) * (rank - x.ndim) + x.shape)
