"""Finds a module's residual stream and blocks: what attention returns is added to what its queries come from."""

from dataclasses import dataclass

from torch import nn

from ...errors import InputError
from .record import Record, Visit


@dataclass(frozen=True)
class Stream:
    """Numbers of tensors in a record.

    inputs: of every block. end: what the last block returns. ends: of every block, what its updates have been added to.
    sums: for each attention call, the operation that adds its result. layers: its block.
    blocks: the calls of the modules that are blocks; empty where blocks are no modules.
    """

    inputs: tuple[int, ...]
    end: int
    ends: tuple[int, ...]
    sums: tuple[int, ...]
    layers: tuple[int, ...]
    blocks: tuple[Visit, ...]


def stream_of(record: Record, model: nn.Module, name: str, blocks: str | None = None) -> Stream:
    """The stream of a model. blocks: the name of the list of blocks, where the user chose it.

    Raises InputError where it is not found, with what to choose from.
    """
    if not record.calls:
        raise InputError(
            f"{name} calls no scaled_dot_product_attention; describe its attention with attention=AttentionOf(...)"
        )
    starts, sums = zip(*(_residual_of(record, model, name, call) for call in range(len(record.calls))), strict=True)
    twice = next((call for call, start in enumerate(starts) if start in starts[:call]), None)
    if twice is not None:
        raise InputError(
            f"{name}: attention calls {starts.index(starts[twice])} and {twice} read the same residual (heads one at a "
            "time, or branches side by side); describe their module with attention=AttentionOf(...)"
        )
    visits = [visit for visit in record.visits if _passes_stream(record, visit)]
    if blocks is not None:
        found = tuple(visit for visit in visits if visit.name.rpartition(".")[0] == blocks)
        if not found or any(_block_around(record, call, found) is None for call in range(len(starts))):
            raise InputError(
                f"{name}: blocks={blocks!r} is not a list of modules that take and return the residual stream and hold "
                f"all attention; choose {lists_of(model)}"
            )
    else:
        found = _block_modules(record, visits, starts, sums)
    if not found:
        return _without_modules(record, starts, sums)
    inputs = tuple(visit.inputs[0] for visit in found)
    end = _summed(record, found[-1].outputs[0], ())
    layers = [_block_around(record, call, found) for call in range(len(starts))]
    ends = (*(visit.outputs[0] for visit in found[:-1]), end)
    return Stream(inputs, end, ends, sums, tuple(layer or 0 for layer in layers), found)


def lists_of(model: nn.Module) -> str:
    """What `blocks` can be: the lists of modules in a model."""
    lists = {name: len(m) for name, m in model.named_modules() if isinstance(m, nn.ModuleList | nn.Sequential) and name}
    return " or ".join(f"blocks={name!r} ({n} modules)" for name, n in lists.items()) or "a module that keeps a list"


def _residual_of(record: Record, model: nn.Module, name: str, call: int) -> tuple[int, int]:
    """The tensor that a call's queries, keys and values come from and its result is added to; the operation that adds.

    Raises InputError where there is none.
    """
    operation = record.calls[call]
    sources = set.intersection(*(record.ancestors(x) for x in record.operations[operation].inputs[:3]))
    for i, later in enumerate(record.operations[operation + 1 :], operation + 1):
        if later.operands is None or not record.is_stream(later.outputs[0]):
            continue
        from_call = [record.is_made_of_call(x, call) for x in later.operands]
        if from_call.count(True) == 1:
            start = _term_among(record, later.operands[from_call.index(False)], sources)
            if start is not None:
                return start, i
    raise InputError(
        f"{name}: what attention call {call} returns is added to nothing that its queries come from, so its block is "
        f"not found, or its result is not used; choose {lists_of(model)}"
    )


def _term_among(record: Record, x: int, sources: set[int]) -> int | None:
    """The tensor, or one that it is the sum of, that is among the sources and made of tokens."""
    if x in sources:
        return x if record.is_made_of_tokens(x) and record.is_stream(x) else None
    return next((found for term in record.terms(x) if (found := _term_among(record, term, sources)) is not None), None)


def _passes_stream(record: Record, visit: Visit) -> bool:
    """Whether a module takes and returns a residual stream; its other inputs and outputs are then forgotten."""
    visit.inputs = tuple(x for x in visit.inputs if record.is_stream(x) and record.is_made_of_tokens(x))
    visit.outputs = tuple(x for x in visit.outputs if record.is_stream(x))
    return bool(visit.inputs and visit.outputs)


def _block_modules(
    record: Record, visits: list[Visit], starts: tuple[int, ...], sums: tuple[int, ...]
) -> tuple[Visit, ...]:
    """The innermost modules that hold both a call and the sum that it goes into, and others like them beside them."""
    blocks = []
    for call, start, total in zip(record.calls, starts, sums, strict=True):
        sources = record.ancestors(start)
        around = [v for v in visits if v.start <= call and total < v.end and v.inputs[0] in sources]
        if not around or around[-1] in blocks:  # one module that holds several calls is no block
            return ()
        blocks.append(around[-1])
    parents, kinds = {v.name.rpartition(".")[0] for v in blocks}, {type(v.module) for v in blocks}
    return tuple(v for v in visits if v.name.rpartition(".")[0] in parents and type(v.module) in kinds)


def _block_around(record: Record, call: int, blocks: tuple[Visit, ...]) -> int | None:
    return next((i for i, visit in enumerate(blocks) if visit.start <= record.calls[call] < visit.end), None)


def _without_modules(record: Record, starts: tuple[int, ...], sums: tuple[int, ...]) -> Stream:
    ends = [_summed(record, record.operations[i].outputs[0], starts) for i in sums]
    end = ends[-1]
    if starts[1:] != tuple(ends[:-1]):  # blocks that end with a norm: so does the last
        calls, function, count = record.place(starts[-1])
        last = [o.outputs[0] for o in record.operations if o.place == (calls + 1, function, count)]
        end = last[0] if last and record.is_stream(last[0]) else end
    return Stream(starts, end, (*ends[:-1], end), sums, tuple(range(len(starts))), ())


def _summed(record: Record, x: int, starts: tuple[int, ...]) -> int:
    """What a residual becomes when updates that are made of it are added to it, up to the start of a block."""
    for operation in record.operations[record.maker[x] + 1 :]:
        operands = operation.operands
        if operands is None or x not in operands or x in starts or not record.is_stream(operation.outputs[0]):
            continue
        if x in record.ancestors(operands[1 - operands.index(x)]):
            x = operation.outputs[0]
    return x
