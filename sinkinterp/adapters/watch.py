"""Watch: what one forward pass is asked, what it is told to change, and what it has answered so far."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..attention.call import AttentionCall
from ..errors import InputError
from ..interventions.edit import Edit
from .subject import CallRead, ResidualRead


@dataclass
class Watch:
    """Every adapter shows it the residual of every block and the call of every attention layer, in forward order.

    rows: answers by attention layer. streams: answers by block, the last output after them. finite: whether each
    residual was.
    """

    calls: Mapping[str, CallRead] = field(default_factory=dict)
    residuals: Mapping[str, ResidualRead] = field(default_factory=dict)
    edits: Sequence[Edit] = ()
    rows: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    streams: list[dict[str, Tensor]] = field(default_factory=list)
    finite: list[Tensor] = field(default_factory=list)

    @torch.no_grad()  # a remote server may run the model with gradients
    def residual(self, x: Tensor) -> Tensor:
        """The next block's input as the edits leave it, `x` itself where they do not change it."""
        for edit in self.edits:
            x = edit.residual(len(self.streams), x)
        self.finite.append(x.sum(dtype=torch.float32).isfinite())  # an infinity or NaN anywhere reaches the sum
        self.streams.append({name: read(x) for name, read in self.residuals.items()})
        return x

    @torch.no_grad()
    def attend(self, call: AttentionCall) -> AttentionCall:
        """A layer's call as the edits leave it, `call` itself where they do not change it."""
        if call.layer in self.rows:
            raise InputError(f"layer {call.layer} attends twice in one pass; such models cannot be read by layer")
        for edit in self.edits:
            call = edit.call(call)
        self.rows[call.layer] = {name: read(call) for name, read in self.calls.items()}
        return call

    @property
    def edits_outputs(self) -> bool:
        """Whether any edit changes what heads return."""
        return any(type(edit).output is not Edit.output for edit in self.edits)

    @torch.no_grad()
    def output(self, call: AttentionCall, z: Tensor) -> Tensor:
        """What the heads of `call` return, `batch head pos d_value`, as the edits leave it."""
        for edit in self.edits:
            z = edit.output(call, z)
        return z

    def check(self, blocks: int) -> None:
        """Raises InputError where a residual was not finite, or was never shown."""
        if len(self.streams) != blocks + 1:
            raise InputError(f"{len(self.streams)} residuals were read of {blocks + 1}; a hook did not fire")
        for block, finite in enumerate(self.finite):
            if not finite:
                where = f"block {block - 1}" if block else "the embedding"
                raise InputError(
                    f"activations after {where} are not finite; check the weights, or load with dtype float32 or "
                    "bfloat16 (float16 overflows above 65,504)"
                )
