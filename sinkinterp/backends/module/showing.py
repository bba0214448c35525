"""Shows a recorder what a module's pass makes."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from ...attention.call import AttentionCall
from ...attention.sites import MLP, POSITION_EMBEDDING, TOKEN_EMBEDDING
from ...errors import InputError
from ..exclusive import raise_if_interrupted
from ..recorder import Recorder
from .anatomy import Anatomy, Operand, with_axes
from .listening import SDPA, Listener, Place

Change = Callable[[Tensor], Tensor]
AGAIN = "; if it keeps rotations or masks of the longest input, run it once on as many tokens, else load it again"


class Showing(Listener):
    """A mode inside which the pass of a model is shown to a recorder.

    updates: those of feed-forward layers that are shown, by block. positions: `#sequence pos`, which tokens are given
    in place of their own. tables: the parameters and buffers that positions are read from, by name.
    """

    def __init__(
        self,
        name: str,
        anatomy: Anatomy,
        recorder: Recorder,
        updates: Mapping[int, Operand],
        positions: Tensor | None,
        tables: Mapping[str, Tensor],
    ) -> None:
        self.anatomy, self.recorder = anatomy, recorder
        self.results: dict[Place, list[Change]] = defaultdict(list)
        self.operands: dict[Place, list[tuple[int, Change]]] = defaultdict(list)
        for place in anatomy.residuals:
            self.results[place].append(self._residual)
        if recorder.edits_at(TOKEN_EMBEDDING):
            shown = partial(_shown, partial(recorder.edited, TOKEN_EMBEDDING), anatomy.are_tokens_batch_first)
            self.results[anatomy.tokens].append(shown)
        if positions is not None:
            for turn in anatomy.turns:
                moved = partial(_moved, name, turn, tables.get(turn.source), positions)
                self.operands[turn.place].append((turn.index, moved))
        learned = anatomy.positions
        if learned is not None and recorder.edits_at(POSITION_EMBEDDING):
            rows = partial(_shown, partial(recorder.edited, POSITION_EMBEDDING), learned.pos_axis == 1)
            self.operands[learned.place].append((learned.index, lambda x: rows(with_axes(x, 3))))
        for block, update in updates.items():
            shown = partial(_shown, partial(recorder.update, MLP, block, factor=update.factor), anatomy.is_batch_first)
            self.operands[update.place].append((update.index, shown))
        super().__init__(name, {function for _, function, _ in (*self.results, *self.operands)})

    def operate(self, place: Place, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = list(args)
        for index, change in self.operands.get(place, ()):
            given[index] = self._changed(change, given[index])
        out = place[1](*given, **kwargs)
        for change in self.results.get(place, ()):
            out = self._changed(change, out)
        return out

    def attend(self, call: AttentionCall, *args: Any, **kwargs: Any) -> Tensor:
        if self.n_attended >= len(self.anatomy.layers):
            raise self._differs("attends more often")
        call = replace(call, layer=self.anatomy.layers[self.n_attended])
        edited = self._last_call = self.recorder.attend(call)
        is_ours = edited is not call or edited.is_fused
        return self.recorder.output(edited, edited.output() if is_ours else SDPA(*args, **kwargs))

    def check(self) -> None:
        """Raises InputError where the pass ran other operations than the recorded one, so that places are wrong."""
        heard, inside = self.heard or set(), range(len(self.anatomy.layers))  # after the last call may be a loss
        found, now = (
            {place: n for place, n in counts.items() if place[0] in inside and place[1] in heard}
            for counts in (self.anatomy.counts, self.counts)
        )
        if found != now:
            raise self._differs("runs other operations")

    def _differs(self, what: str) -> InputError:
        return InputError(f"{self.name} {what} than when it was loaded{AGAIN}")

    def _changed(self, change: Change, x: Any) -> Tensor:
        if not isinstance(x, Tensor):
            raise self._differs("runs other operations")
        try:
            return change(x)
        except TypeError as error:  # of which Python would say that tensors cannot be added
            raise RuntimeError(f"an edit or a read failed: {error}") from error

    def _residual(self, x: Tensor) -> Tensor:
        raise_if_interrupted()
        if x.ndim != 3 or x.shape[-1] != self.anatomy.d_model:
            raise self._differs("runs other operations")
        kept = x.clone()  # what reads and edits keep must not change when the module adds to the stream in place
        edited = _shown(self.recorder.residual, self.anatomy.is_batch_first, kept)
        return x if edited is kept else edited.clone()


def _shown(show: Change, is_batch_first: bool, x: Tensor) -> Tensor:
    """Returns what the recorder makes of a tensor, which it is shown with its sequences first."""
    given = x if is_batch_first else x.transpose(0, 1)
    edited = show(given)
    if edited is given:
        return x
    return edited if is_batch_first else edited.transpose(0, 1)


def _moved(name: str, turn: Operand, table: Tensor | None, positions: Tensor, x: Tensor) -> Tensor:
    """The rows of an operand, or of the table that it is read from, at the positions of each sequence."""
    x = with_axes(table if turn.is_table and table is not None else x, turn.rank).narrow(turn.batch_axis, 0, 1)
    if (last := int(positions.max())) >= (rows := x.shape[turn.pos_axis]):
        raise InputError(f"{name} has {rows} positions for {positions.shape[1]} tokens, and {last} is outside them")
    moved = x.movedim(turn.pos_axis, 0)[positions].movedim(1, turn.pos_axis + 1)
    return moved.movedim(0, turn.batch_axis).squeeze(turn.batch_axis + 1)
