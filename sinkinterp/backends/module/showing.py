"""Shows a recorder the attention calls, residuals, updates and embeddings of a module's pass."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor
from typing_extensions import override

from ...attention.call import AttentionCall
from ...errors import InputError
from ...interventions.edit import POSITION_EMBEDDING, TOKEN_EMBEDDING
from ..exclusive import raise_if_interrupted
from ..recorder import Recorder
from .anatomy import Anatomy, Operand, with_axes
from .listening import SDPA, Listener, Place

Change = Callable[[Tensor], Tensor]


class Showing(Listener):
    """A mode inside which the pass of a model is shown to a recorder.

    blocks: those whose updates are shown. positions: `#sequence pos`, which tokens are given in place of their own.
    tables: the parameters and buffers that positions are read from, by name.
    """

    def __init__(
        self,
        name: str,
        anatomy: Anatomy,
        recorder: Recorder,
        blocks: Sequence[int],
        positions: Tensor | None = None,
        tables: Mapping[str, Tensor] = {},
    ) -> None:
        self.anatomy, self.recorder = anatomy, recorder
        self.error: TypeError | None = None
        self.results: dict[Place, Change] = dict.fromkeys(anatomy.residuals, self._residual)
        self.operands: dict[Place, list[tuple[int, Change]]] = defaultdict(list)
        if recorder.edits_at(TOKEN_EMBEDDING):
            shown = self.results.get(anatomy.tokens, _unchanged)
            self.results[anatomy.tokens] = lambda x: shown(self._batch_first(x, recorder.token_embedding))
        if positions is not None:
            for turn in anatomy.turns:
                self.operands[turn.place].append((turn.index, partial(_moved, turn, tables.get(turn.table), positions)))
        learned = anatomy.positions
        if learned is not None and recorder.edits_at(POSITION_EMBEDDING):
            self.operands[learned.place].append((learned.index, self._position_embedding))
        for block in blocks:
            update = anatomy.updates[block]
            if update is not None:
                show = partial(recorder.mlp, block, factor=update.factor)
                self.operands[update.place].append((update.index, partial(self._batch_first, shown=show)))
        super().__init__(name, {function for _, function, _ in (*self.results, *self.operands)})

    @override
    def operate(self, place: Place, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            if place in self.operands:
                args = self._changed(place, args)
            out = place[1](*args, **kwargs)
            return self.results[place](out) if place in self.results else out
        except TypeError as error:  # Python would say that tensors cannot be added
            self.error = error
            raise

    @override
    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        super().__exit__(kind, error, traceback)
        if self.error is not None and self.error is not error:
            raise self.error from None

    @override
    def attend(self, call: AttentionCall, *args: Any, **kwargs: Any) -> Tensor:
        if self.n_attended >= len(self.anatomy.layers):
            raise InputError(
                f"{self.name} attends more often than the {len(self.anatomy.layers)} times when it was loaded"
            )
        call = replace(call, layer=self.anatomy.layers[self.n_attended])
        edited = self._last_call = self.recorder.attend(call)
        is_ours = edited is not call or edited.is_fused
        return self.recorder.output(edited, edited.output() if is_ours else SDPA(*args, **kwargs))

    def _changed(self, place: Place, args: tuple[Any, ...]) -> tuple[Any, ...]:
        changed = list(args)
        for index, change in self.operands[place]:
            changed[index] = change(changed[index])
        return tuple(changed)

    def _residual(self, x: Tensor) -> Tensor:
        raise_if_interrupted()
        if x.ndim != 3 or x.shape[-1] != self.anatomy.d_model:
            raise InputError(f"{self.name} runs other operations than when it was loaded; load it again")
        if not self.anatomy.is_in_place:
            return self._batch_first(x, self.recorder.residual)
        shown = x.clone()  # what reads keep must not change when the module adds to the stream
        edited = self._batch_first(shown, self.recorder.residual)
        return x if edited is shown else edited.clone()

    def _position_embedding(self, x: Tensor) -> Tensor:
        return self._batch_first(x[None] if x.ndim < 3 else x, self.recorder.position_embedding)

    def _batch_first(self, x: Tensor, shown: Change) -> Tensor:
        """What the recorder makes of a tensor, which is shown with its sequences first."""
        if self.anatomy.is_batch_first:
            return shown(x)
        given = x.transpose(0, 1)
        edited = shown(given)
        return x if edited is given else edited.transpose(0, 1)


def _unchanged(x: Tensor) -> Tensor:
    return x


def _moved(turn: Operand, table: Tensor | None, positions: Tensor, x: Tensor) -> Tensor:
    """The rows of an operand, or of the table that it is read from, at the positions of each sequence."""
    x = with_axes(x if table is None else table, turn.rank).narrow(turn.batch_axis, 0, 1)
    rows = x.movedim(turn.pos_axis, 0)[positions].movedim(1, turn.pos_axis + 1)
    return rows.movedim(0, turn.batch_axis).squeeze(turn.batch_axis + 1)
