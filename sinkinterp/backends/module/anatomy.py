"""The places where a module makes residuals, feed-forward updates, embeddings and positions."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from re import sub
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...checks import Frozen, InputError
from .listening import ADD, INTEGERS, MULTIPLY, SDPA, Operation, Place, Record, Visit

NOWHERE = -1  # the number of no tensor
_SOFTMAX = frozenset({F.softmax, torch.softmax, Tensor.softmax})


class Operand(Frozen):
    """One of the two tensors that an operation adds or multiplies; `number` is its number in the record.

    factor: what the operation multiplies it by. For one that has a row for each position, rank, pos_axis and batch_axis
    are the result's, `source` names the parameter or buffer that it is read from, empty where it is computed, and
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


class Anatomy(Frozen):
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


class Call(Frozen):
    """An attention call: its operation, its output, the residual that it starts from, and the sum of the two.

    The last two are NOWHERE where no such sum is found, as where the residual is scaled first.
    """

    at: int
    z: int
    start: int = NOWHERE
    total: int = NOWHERE


def _calls(record: Record) -> list[Call]:
    square = (record.tokens.shape[1],) * 2
    written = [
        i
        for i, operation in enumerate(record.operations)
        if operation.place[1] in _SOFTMAX and record.tensors[operation.outputs[0]].shape[-2:] == square
    ]
    if written or not record.calls:
        inside = [[v.name for v in record.visits if v.start <= i < v.end] for i in written]
        names = dict.fromkeys(sub(r"\d+", "*", around[-1]) for around in inside if around)
        often = "only sometimes" if record.calls else "no"
        where = f" (softmax is written out in {' and '.join(names)})" if names else ""
        fix = "describe its attention: AttentionOf"
        raise InputError(f"{record.name} calls {often} scaled_dot_product_attention{where}; {fix}")
    return [_call(record, i) for i in range(len(record.calls))]


def _call(record: Record, i: int) -> Call:
    at = record.calls[i]
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
        choices = " or ".join(f"blocks={key!r} ({len(lists[key])} modules)" for key in fitting if key)
        choice = f"choose {choices}" if choices else "no list of its modules fits"
        what = (
            "attention is added to nothing, or the stream is scaled or gated"
            if is_lost
            else f"blocks={wanted!r} lacks some of it"
        )
        raise InputError(f"{record.name}: {what}; {choice}")
    single = [key for key in fitting if len(set(holding[key])) == len(calls)]
    key = max(single, key=len, default=None) if wanted is None else wanted
    if key is None:
        return [], tuple(range(len(calls)))
    kinds = {type(lists[key][block].module) for block in holding[key]}
    found = [i for i, visit in enumerate(lists[key]) if wanted is not None or type(visit.module) in kinds]
    return [lists[key][i] for i in found], tuple(map(found.index, holding[key]))


def _holding(record: Record, calls: Sequence[Call], visits: list[Visit]) -> list[int]:
    """Which visits hold the calls with their sums."""
    return [
        i
        for call in calls
        for i, visit in enumerate(visits)
        if visit.start <= call.at < visit.end
        and (call.start == NOWHERE or record.maker[call.total] < visit.end)
        and (call.start == NOWHERE or record.is_made_of(call.start, visit.inputs[0]))
    ]


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
        found = [
            term
            for term in _terms(record, end, start)
            if all(record.is_made_of(term.number, c.total) or not record.is_made_of(term.number, c.z) for c in inside)
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
    found: list[Operand] = []
    for operation in record.operations:
        turn = _turn(record, operation)
        found += () if turn is None else (turn,)
        if turn is None and _mixes_positions(record, operation):
            return ()
    return tuple(found)


def _turn(record: Record, operation: Operation) -> Operand | None:
    batch, length = record.tokens.shape
    of_tokens = [record.is_made_of(x) for x in operation.pair]
    shape = record.tensors[operation.outputs[0]].shape
    if operation.place[1] not in ADD | MULTIPLY or of_tokens.count(True) != 1 or batch not in shape:
        return None
    index, rank = of_tokens.index(False), len(shape)
    rows, read = with_axes(operation.args[index], rank), record.source(operation.pair[index])
    axes = [axis for axis, size in enumerate(rows.shape) if size == shape[axis] == length]
    if len(axes) != 1:
        return None
    source, table = read or ("", rows[..., :0])
    place = (rank, axes[0], shape.index(batch), source, _are_first(table, rows, axes[0]))
    return Operand(operation.place, operation.pair[index], index, 1.0, *place)


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
    found = {turn.source.removesuffix(".weight") or "computed": turn for turn in added}
    if wanted not in found and (wanted is not None or len(found) > 1):
        choices = " or ".join(f"positions={other!r}" for other in found) or "none"
        raise InputError(f"{record.name} adds to the tokens' embeddings: {choices}; name one of these")
    return found.get(wanted or next(iter(found), ""))


def with_axes(x: Tensor, rank: int) -> Tensor:
    """The tensor with axes of size 1 before its own, so that it has `rank` axes."""
    return x.reshape((1,) * (rank - x.ndim) + x.shape)
