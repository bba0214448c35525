"""Where a module's residuals, feed-forward updates, embeddings and positions are made, by what is added to what."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import InputError
from .listening import Place
from .record import ADD, MULTIPLY, Operation, Record, Visit


@dataclass(frozen=True)
class Operand:
    """One of the two tensors that an operation adds or multiplies; `number` is its number in the record.

    factor: what the operation multiplies it by. For one that is a row for each position, rank, pos_axis and batch_axis
    are the result's, and `table` names the parameter or buffer whose first rows it is; empty where it is computed.
    """

    place: Place
    number: int
    index: int
    factor: float = 1.0
    rank: int = 3
    pos_axis: int = 1
    batch_axis: int = 0
    table: str = ""


@dataclass(frozen=True)
class Anatomy:
    """Where things are in a pass.

    residuals: what makes the input of every block, and what the last block returns. layers: the block of each call.
    table: the name of the weight of the token table, table_size: its sizes; tokens: what reads it.
    positions: what is added to the tokens' embeddings; None without such positions. n_positions: how many rows they
    have; None where they are computed. positions_name: of their parameter or buffer.
    turns: the operands that depend on positions and not on tokens. updates: those that feed-forward layers add, by
    block; None where not found. blocks_name: of their modules; empty where they are no modules.
    is_batch_first: whether the stream is (batch, pos, d_model), not (pos, batch, d_model). d_model: of the stream.
    """

    residuals: tuple[Place, ...]
    layers: tuple[int, ...]
    table: str
    table_size: tuple[int, ...]
    tokens: Place
    positions: Operand | None
    positions_name: str
    n_positions: int | None
    turns: tuple[Operand, ...]
    updates: tuple[Operand | None, ...]
    blocks_name: str
    is_batch_first: bool
    d_model: int


def anatomy_of(
    record: Record, model: nn.Module, name: str, blocks: str | None = None, positions: str | None = None
) -> Anatomy:
    """The anatomy of a model. blocks, positions: names of modules or parameters that the user chose.

    Raises InputError where it is not found or ambiguous, with what to choose from.
    """
    starts, totals = _sums(record, model, name)
    visits, layers = _blocks(record, model, name, starts, totals, blocks)
    inputs = [visit.inputs[0] for visit in visits] or starts
    stream = (*inputs, _grown(record, visits[-1].outputs[0] if visits else totals[-1]))
    lookup = _token_lookup(record, stream[0], name)
    names = {id(x): key for key, x in (*model.named_parameters(), *model.named_buffers())}
    turns = tuple(_turns(record, names))
    rows, rows_name = _learned_positions(record, stream[0], turns, names, name, positions)
    table = None if rows is None else _leaf(record, rows.number)
    return Anatomy(
        residuals=tuple(record.operations[record.maker[x]].place for x in stream),
        layers=layers,
        table=names.get(id(_leaf(record, lookup.inputs[1])), ""),
        table_size=tuple(record.tensors[lookup.inputs[1]].shape),
        tokens=lookup.place,
        positions=rows,
        positions_name=rows_name,
        n_positions=None if table is None else table.shape[-2],
        turns=turns,
        updates=tuple(_updates(record, stream, layers, totals)),
        blocks_name=" and ".join(dict.fromkeys(f"{_list_of(visit)}.*".lstrip(".") for visit in visits)),
        is_batch_first=record.tensors[stream[-1]].shape[:2] == record.tokens.shape,
        d_model=record.tensors[stream[-1]].shape[-1],
    )


# The residual stream: what attention returns is added to what its queries, keys and values are made of


def _sums(record: Record, model: nn.Module, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of every attention call the tensor that it starts from, and the sum of that and of what the call returns."""
    if not record.calls:
        raise InputError(
            f"{name} calls no scaled_dot_product_attention; describe its attention with attention=AttentionOf(...)"
        )
    starts, totals = zip(*(_sum_of(record, model, name, call) for call in range(len(record.calls))), strict=True)
    twice = next((call for call, start in enumerate(starts) if start in starts[:call]), None)
    if twice is not None:
        raise InputError(
            f"{name}: attention calls {starts.index(starts[twice])} and {twice} read the same residual (heads one at a "
            "time, or branches side by side); describe their module with attention=AttentionOf(...)"
        )
    return starts, totals


def _sum_of(record: Record, model: nn.Module, name: str, call: int) -> tuple[int, int]:
    attention = record.operations[record.calls[call]]
    q, k, v = (record.ancestors[x] for x in attention.inputs[:3])
    for later in record.operations[record.calls[call] :]:
        total = later.outputs[0]
        terms = record.terms(total)
        from_call = [record.is_made_of(x, attention.outputs[0]) for x in terms]
        if from_call.count(True) == 1 and record.is_stream(total):
            start = _term_in(record, terms[from_call.index(False)], q & k & v)
            if start is not None:
                return start, total
    raise InputError(
        f"{name}: what attention call {call} returns is added to nothing that its queries come from, so its block is "
        f"not found, or its result is not used; choose {_choices(model)}"
    )


def _term_in(record: Record, x: int, sources: int) -> int | None:
    """The stream that is a tensor, or one of the terms that it is the sum of, and is among the sources."""
    if sources >> x & 1:
        return x if record.is_stream(x) else None
    return next((found for term in record.terms(x) if (found := _term_in(record, term, sources)) is not None), None)


def _blocks(
    record: Record, model: nn.Module, name: str, starts: tuple[int, ...], totals: tuple[int, ...], wanted: str | None
) -> tuple[list[Visit], tuple[int, ...]]:
    """The calls of the modules that are blocks, and the block of each attention call.

    They are the modules of the innermost list in which each holds one call with the sum that it goes into, and others
    of their kind. Without such a list, blocks are no modules: each call is one.
    """
    lists: dict[str, list[Visit]] = defaultdict(list)
    for visit in record.visits:
        if visit.inputs and visit.outputs:
            lists[_list_of(visit)].append(visit)
    sums = [(i, record.maker[total], start) for i, total, start in zip(record.calls, totals, starts, strict=True)]
    holders = {
        key: [
            next((v for v in visits if v.start <= i and j < v.end and record.is_made_of(start, v.inputs[0])), None)
            for i, j, start in sums
        ]
        for key, visits in lists.items()
    }
    fitting = [key for key, found in holders.items() if None not in found]
    if wanted is not None and wanted not in fitting:
        raise InputError(
            f"{name}: blocks={wanted!r} is not a list of modules that take and return the residual stream and hold "
            f"all attention; choose {_choices(model)}"
        )
    single = [key for key in fitting if len({id(visit) for visit in holders[key]}) == len(starts)]
    key = max(single, key=len, default=None) if wanted is None else wanted
    if key is None:
        return [], tuple(range(len(starts)))
    kinds = {type(visit.module) for visit in holders[key] if visit is not None}
    found = [visit for visit in lists[key] if wanted is not None or type(visit.module) in kinds]
    return found, tuple(found.index(visit) for visit in holders[key] if visit is not None)


def _list_of(visit: Visit) -> str:
    return visit.name.rpartition(".")[0]


def _choices(model: nn.Module) -> str:
    """What `blocks` can be: the lists of modules in a model."""
    lists = {name: len(m) for name, m in model.named_modules() if isinstance(m, nn.ModuleList | nn.Sequential) and name}
    return " or ".join(f"blocks={name!r} ({n} modules)" for name, n in lists.items()) or "a module that keeps a list"


def _grown(record: Record, x: int) -> int:
    """What a residual becomes when updates that are made of it are added to it."""
    for operation in record.operations:
        total = operation.outputs[0]
        terms = record.terms(total)
        if x in terms and record.is_made_of(terms[1 - terms.index(x)], x) and record.is_stream(total):
            x = total
    return x


# Feed-forward updates


def _updates(
    record: Record, stream: tuple[int, ...], layers: tuple[int, ...], totals: tuple[int, ...]
) -> Iterator[Operand | None]:
    """What the feed-forward layer of each block adds, where it is one of the terms that are added to the stream."""
    results = [(record.operations[i].outputs[0], total) for i, total in zip(record.calls, totals, strict=True)]
    for block, (start, end) in enumerate(pairwise(stream)):
        calls = [result for result, layer in zip(results, layers, strict=True) if layer == block]
        found = [
            term
            for term in _terms(record, end, start)
            if all(not record.is_made_of(term.number, z) or record.is_made_of(term.number, total) for z, total in calls)
        ]
        yield found[0] if len(found) == 1 else None


def _terms(record: Record, x: int, start: int) -> Iterator[Operand]:
    """All that is added to `start` on the way to `x`."""
    for index, number in enumerate(record.terms(x) if x != start else ()):
        if number != start and record.terms(number):
            yield from _terms(record, number, start)
        elif number != start:
            operation = record.operations[record.maker[x]]
            yield Operand(operation.place, number, index, float(operation.kwargs.get("alpha", 1) if index else 1))


# Embeddings and positions


def _token_lookup(record: Record, start: int, name: str) -> Operation:
    """What looks tokens up in their table, for the input of the first block."""
    lookups = [
        operation
        for operation in record.operations
        if operation.place[1] is F.embedding
        and record.is_made_of(operation.inputs[0])
        and record.is_made_of(start, operation.outputs[0])
    ]
    if len(lookups) != 1:
        raise InputError(
            f"{name} looks tokens up in {len(lookups)} tables before its first block; one is needed: F.embedding or "
            "nn.Embedding of the token ids"
        )
    return lookups[0]


def _turns(record: Record, names: dict[int, str]) -> Iterator[Operand]:
    """Operands with a row for each position that do not depend on tokens, beside one that does."""
    batch, length = record.tokens.shape
    for operation in record.operations:
        of_tokens = [record.is_made_of(x) for x in operation.pair]
        shape = record.tensors[operation.outputs[0]].shape
        if operation.place[1] not in ADD | MULTIPLY or of_tokens.count(True) != 1 or batch not in shape:
            continue
        index = of_tokens.index(False)
        rows = with_axes(record.tensors[operation.pair[index]], len(shape))
        axes = [axis for axis, size in enumerate(rows.shape) if size == shape[axis] == length]
        if len(axes) == 1:
            found = Operand(operation.place, operation.pair[index], index, 1.0, len(shape), axes[0], shape.index(batch))
            yield replace(found, table=_table(record, found, rows, names))


def _table(record: Record, turn: Operand, rows: Tensor, names: dict[int, str]) -> str:
    """The name of the parameter or buffer whose first rows these are; empty where they are computed."""
    leaf = _leaf(record, turn.number)
    if leaf is None or leaf.ndim > turn.rank:
        return ""
    whole = with_axes(leaf, turn.rank)
    first = whole.narrow(turn.pos_axis, 0, min(rows.shape[turn.pos_axis], whole.shape[turn.pos_axis]))
    return names.get(id(leaf), "") if first.equal(rows) else ""


def _learned_positions(
    record: Record, start: int, turns: tuple[Operand, ...], names: dict[int, str], name: str, wanted: str | None
) -> tuple[Operand | None, str]:
    """The positions that are added to the tokens' embeddings, and the name of their parameter; see `Anatomy`."""
    made = {operation.place: operation.outputs[0] for operation in record.operations}
    found = {}
    for turn in turns:
        total = made[turn.place]
        if turn.place[1] in ADD and record.is_stream(total) and record.is_made_of(start, total):
            found[names.get(id(_leaf(record, turn.number)), "computed").removesuffix(".weight")] = turn
    if wanted is not None and wanted not in found:
        raise InputError(f"{name}: positions={wanted!r} is added to no embedding; found: {', '.join(found) or 'none'}")
    if wanted is None and len(found) > 1:
        choices = " or ".join(f"positions={other!r}" for other in found)
        raise InputError(f"{name} adds several tables to the tokens' embeddings; choose {choices}")
    key = wanted or next(iter(found), "")
    return found.get(key), key


def _leaf(record: Record, x: int) -> Tensor | None:
    """The parameter or buffer, of two axes or more, that a tensor is read from."""
    leaves = [leaf for y, leaf in enumerate(record.tensors) if record.is_made_of(x, y) and y not in record.maker]
    return next((leaf for leaf in leaves if leaf.ndim > 1 and leaf.is_floating_point()), None)


def with_axes(x: Tensor, rank: int) -> Tensor:
    """The tensor with axes of size 1 before its own, so that it has `rank` axes."""
    return x.reshape((1,) * (rank - x.ndim) + x.shape)
