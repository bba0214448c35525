"""Where a module's residuals, feed-forward updates, embeddings and positions are made, by what is added to what."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import InputError
from .listening import Place
from .record import ADD, MULTIPLY, Operation, Record
from .stream import Stream, stream_of


@dataclass(frozen=True)
class Operand:
    """One of the two tensors that an operation adds or multiplies; `number` is its number in the record.

    rank, pos_axis, batch_axis: the result's. factor: what the operation multiplies the operand by.
    table: the name of the parameter or buffer whose first rows the operand is; empty where it is computed.
    """

    place: Place
    number: int
    index: int
    rank: int = 3
    pos_axis: int = 1
    batch_axis: int = 0
    factor: float = 1.0
    table: str = ""


@dataclass(frozen=True)
class Anatomy:
    """Where things are in a pass.

    residuals: what makes the input of every block, and what the last block returns. layers: the block of each call.
    table: the name of the weight of the token table, table_size: its sizes; tokens: what reads it.
    positions: what is added to the tokens' embeddings; None without such positions. n_positions: how many rows they
    have; None where they are computed. positions_name: of their parameter or buffer.
    turns: the operands that depend on positions and not on tokens. updates: those that feed-forward layers add, by
    block; None where not found. blocks: their modules, or the model itself where they are no modules.
    is_batch_first: whether the stream is (batch, pos, d_model), not (pos, batch, d_model). is_in_place: whether any
    tensor of its shape is changed in place. d_model: of the stream.
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
    blocks: tuple[nn.Module, ...]
    blocks_name: str
    is_batch_first: bool
    is_in_place: bool
    d_model: int


def anatomy_of(
    record: Record, model: nn.Module, name: str, blocks: str | None = None, positions: str | None = None
) -> Anatomy:
    """The anatomy of a model. blocks, positions: names of modules or parameters that the user chose.

    Raises InputError where it is not found or ambiguous, with what to choose from.
    """
    stream = stream_of(record, model, name, blocks)
    names = {id(x): key for key, x in (*model.named_parameters(), *model.named_buffers())}
    lookup = _token_lookup(record, stream, name)
    turns = tuple(_turns(record, names))
    chosen, chosen_name = _learned_positions(record, stream, turns, names, name, positions)
    rows = _leaf(record, chosen.number) if chosen else None
    return Anatomy(
        residuals=tuple(record.place(x) for x in (*stream.inputs, stream.end)),
        layers=stream.layers,
        table=names.get(id(_leaf(record, lookup.inputs[1])), ""),
        table_size=record.shapes[lookup.inputs[1]],
        tokens=lookup.place,
        positions=chosen,
        positions_name=chosen_name,
        n_positions=None if rows is None else rows.shape[-2],
        turns=turns,
        updates=tuple(_update(record, stream, block) for block in range(len(stream.inputs))),
        blocks=tuple(visit.module for visit in stream.blocks) or (model,) * len(stream.inputs),
        blocks_name=_common_name(visit.name for visit in stream.blocks),
        is_batch_first=record.shapes[stream.end][:2] == tuple(record.tokens.shape),
        is_in_place=any(record.is_stream(x) for operation in record.operations for x in record.changed(operation)),
        d_model=record.shapes[stream.end][-1],
    )


def _token_lookup(record: Record, stream: Stream, name: str) -> Operation:
    """What looks tokens up in their table, for the input of the first block."""
    sources = record.ancestors(stream.inputs[0])
    lookups = [
        operation
        for operation in record.operations
        if operation.place[1] is F.embedding
        and record.is_made_of_tokens(operation.inputs[0])
        and operation.outputs[0] in sources
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
        if operation.place[1] not in ADD | MULTIPLY or not all(isinstance(x, Tensor) for x in operation.args[:2]):
            continue
        of_tokens = [record.is_made_of_tokens(x) for x in operation.inputs[:2]]
        shape = record.shapes[operation.outputs[0]]
        if of_tokens.count(True) != 1 or batch not in shape:
            continue
        index = of_tokens.index(False)
        number, rank = operation.inputs[index], len(shape)
        own = (1,) * (rank - len(record.shapes[number])) + record.shapes[number]
        axes = [axis for axis in range(rank) if own[axis] == shape[axis] == length]
        if len(axes) == 1:
            table = names.get(id(_table(record, number, rank, axes[0])), "")
            yield Operand(operation.place, number, index, rank, axes[0], shape.index(batch), table=table)


def _learned_positions(
    record: Record, stream: Stream, turns: tuple[Operand, ...], names: dict[int, str], name: str, wanted: str | None
) -> tuple[Operand | None, str]:
    """The positions that are added to the tokens' embeddings, and the name of their parameter; see `Anatomy`."""
    sources, found = record.ancestors(stream.inputs[0]), {}
    for turn in turns:
        operation = next(operation for operation in record.operations if operation.place == turn.place)
        if (
            operation.operands is not None
            and operation.outputs[0] in sources
            and record.is_stream(operation.outputs[0])
        ):
            leaf = _leaf(record, turn.number)
            found[names.get(id(leaf), "computed").removesuffix(".weight")] = turn
    if wanted is not None and wanted not in found:
        raise InputError(f"{name}: positions={wanted!r} is added to no embedding; found: {', '.join(found) or 'none'}")
    if wanted is None and len(found) > 1:
        choices = " or ".join(f"positions={other!r}" for other in found)
        raise InputError(f"{name} adds several tables to the tokens' embeddings; choose {choices}")
    key = wanted or next(iter(found), "")
    return found.get(key), key


def _leaf(record: Record, x: int) -> Tensor | None:
    """The parameter or buffer, of two axes or more, that a tensor is read from."""
    leaves = [record.tensors[y] for y in sorted(record.ancestors(x)) if y not in record.maker]
    return next((leaf for leaf in leaves if leaf.ndim > 1 and leaf.is_floating_point()), None)


def _table(record: Record, x: int, rank: int, axis: int) -> Tensor | None:
    """The tensor whose first rows along an axis are `x`, seen with `rank` axes; None where there is none."""
    leaf, rows = _leaf(record, x), record.tensors[x]
    if leaf is None or leaf.ndim > rank:
        return None
    whole, rows = (with_axes(t, rank) for t in (leaf, rows))
    return leaf if whole.narrow(axis, 0, min(rows.shape[axis], whole.shape[axis])).equal(rows) else None


def with_axes(x: Tensor, rank: int) -> Tensor:
    """The tensor with axes of size 1 before its own, so that it has `rank` axes."""
    return x.reshape((1,) * (rank - x.ndim) + x.shape)


def _update(record: Record, stream: Stream, block: int) -> Operand | None:
    """What the feed-forward layer of a block adds to the stream, where it is one term of the sum that the block is."""
    if block not in stream.layers:
        return None
    call = stream.layers.index(block)
    total = record.operations[stream.sums[call]].outputs[0]
    found = [
        operand
        for operand in _terms(record, stream.ends[block], stream.inputs[block])
        if total in record.ancestors(operand.number) or not record.is_made_of_call(operand.number, call)
    ]
    return found[0] if len(found) == 1 else None


def _terms(record: Record, x: int, start: int) -> Iterator[Operand]:
    """All that is added to `start` on the way to `x`."""
    operation = record.operations[record.maker[x]] if x in record.maker and x != start else None
    if operation is None or operation.operands is None:
        return
    for index, number in enumerate(operation.operands):
        if number == start:
            continue
        if record.terms(number):
            yield from _terms(record, number, start)
        else:
            factor = operation.kwargs.get("alpha", 1) if index else 1
            yield Operand(operation.place, number, index, factor=float(factor))


def _common_name(names: Iterator[str]) -> str:
    """transformer.h.* for transformer.h.0 and transformer.h.1; empty for no names."""
    return " and ".join(dict.fromkeys(f"{name.rpartition('.')[0]}.*".lstrip(".") for name in names))
