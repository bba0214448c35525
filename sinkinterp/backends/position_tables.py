"""Tables of learned positions: which modules they are, and which rows they return."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel


@contextmanager
def position_tables(model: PreTrainedModel, length: int) -> Iterator[list[nn.Module]]:
    """A list that fills, while the model runs, with the tables that are asked for consecutive rows: learned positions.

    length: of the sequences that the model runs on.
    """
    tables: list[nn.Module] = []

    def before(table: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if any(_is_consecutive(ids, length) for ids in (*args, *kwargs.values())):
            tables.append(table)

    others = [m for m in model.modules() if isinstance(m, nn.Embedding) and m is not model.get_input_embeddings()]
    handles = [table.register_forward_pre_hook(before, with_kwargs=True) for table in others]
    try:
        yield tables
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def asked_for(tables: Sequence[nn.Module], positions: Tensor) -> Iterator[None]:
    """Inside, the tables of learned positions return other rows than the model asks for.

    positions: `#sequence pos`, the positions that tokens are given, counted from the first row that the model asks for.
    """
    n_sequences, length = positions.shape

    def edited(ids: Any) -> Any:
        if not _is_consecutive(ids, length):
            return ids
        rows = ids.flatten()[0] + positions.flatten()
        return rows.view(*(1,) * (ids.ndim - 1), -1)

    def before(table: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple, dict]:
        return tuple(map(edited, args)), {name: edited(value) for name, value in kwargs.items()}

    def after(table: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        return output.reshape(n_sequences, length, -1)

    handles = [table.register_forward_pre_hook(before, with_kwargs=True) for table in tables]
    handles += [table.register_forward_hook(after, prepend=True) for table in tables]  # before a recorder sees it
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _is_consecutive(ids: Any, length: int) -> bool:
    """Whether this is a tensor of `length` consecutive integers, or of several such rows."""
    is_ids = isinstance(ids, Tensor) and not ids.is_floating_point() and ids.shape[-1:] == (length,)
    return is_ids and bool((ids.long().diff() == 1).all())
