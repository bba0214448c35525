"""Recorder: what one forward pass is asked, what it is told to change, and what it has answered so far."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..attention.call import AttentionCall
from ..attention.model_shape import ModelShape
from ..errors import InputError
from ..interventions.edit import Edit, touches
from .subject import CallRead, ResidualRead


@dataclass
class Recorder:
    """Every adapter shows it, in forward order, the embeddings and all residuals, calls and feed-forward updates.

    past: how many positions a cache already holds; edits are shown NaN in their place, so that positions count from the
    start of the sequence. gradients: whether edits are to be differentiated. rows: answers by attention layer.
    streams: answers by block, the last output after them. updates: answers by block, of its feed-forward layer.
    finite: whether each residual was. size: sequences and positions of the residual.
    """

    calls: Mapping[str, CallRead] = field(default_factory=dict)
    residuals: Mapping[str, ResidualRead] = field(default_factory=dict)
    mlps: Mapping[str, ResidualRead] = field(default_factory=dict)
    edits: Sequence[Edit] = ()
    gradients: bool = False
    past: int = 0
    rows: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    streams: list[dict[str, Tensor]] = field(default_factory=list)
    updates: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    finite: list[Tensor] = field(default_factory=list)
    size: tuple[int, int] = (0, 0)

    def begin(self, edits: Sequence[Edit], past: int) -> None:
        """Another forward pass, under these edits, differentiated where gradients are on."""
        self.edits, self.past, self.gradients = edits, past, torch.is_grad_enabled()
        for answers in (self.rows, self.streams, self.updates, self.finite):
            answers.clear()

    def edits_at(self, site: str) -> bool:
        """Whether any edit changes what is at this site, a method of `Edit`."""
        return any(touches(edit, site) for edit in self.edits)

    def token_embedding(self, x: Tensor) -> Tensor:
        """What the table of tokens gives, as the edits leave it."""
        return self._edited("token_embedding", x)

    def position_embedding(self, x: Tensor) -> Tensor:
        """What the table of positions gives, as the edits leave it."""
        return self._edited("position_embedding", x)

    def residual(self, x: Tensor) -> Tensor:
        """The next block's input as the edits leave it, `x` itself where they do not change it."""
        self.size = (x.shape[0], x.shape[1])
        x = self._edited("residual", x, len(self.streams))
        with torch.no_grad():
            self.finite.append(x.sum(dtype=torch.float32).isfinite())  # an infinity or NaN anywhere reaches the sum
            self.streams.append({name: read(x) for name, read in self.residuals.items()})
        return x

    def attend(self, call: AttentionCall) -> AttentionCall:
        """A layer's call as the edits leave it, `call` itself where they do not change it."""
        if call.layer in self.rows:
            raise InputError(f"layer {call.layer} attends twice in one pass; such models cannot be read by layer")
        if self.past and self.edits and call.k.shape[2] - call.q.shape[2] != self.past:
            raise InputError(
                "this cache forgets or preallocates keys, and edits count them from the first; set use_cache=False"
            )
        with torch.set_grad_enabled(self.gradients):
            for edit in self.edits:
                call = edit.call(call)
        with torch.no_grad():
            self.rows[call.layer] = {name: read(call) for name, read in self.calls.items()}
        return call

    def output(self, call: AttentionCall, z: Tensor) -> Tensor:
        """What the heads of `call` return, `batch head pos d_value`, as the edits leave it."""
        return self._edited("output", z, call)

    def mlp(self, block: int, x: Tensor) -> Tensor:
        """What a block's feed-forward layer adds, as the edits leave it; OPT's comes with its sequences flattened."""
        whole = x.view(*self.size, -1)
        edited = self._edited("mlp", whole, block)
        with torch.no_grad():
            self.updates[block] = {name: read(edited) for name, read in self.mlps.items()}
        return x if edited is whole else edited.reshape(x.shape)

    def _edited(self, site: str, x: Tensor, *where: int | AttentionCall) -> Tensor:
        if not self.edits_at(site):
            return x
        unseen = x.new_full((*x.shape[:-2], self.past, x.shape[-1]), torch.nan)
        given = whole = torch.cat((unseen, x), -2) if self.past else x
        with torch.set_grad_enabled(self.gradients):
            for edit in self.edits:
                whole = getattr(edit, site)(*where, whole)
        return x if whole is given else whole[..., self.past :, :]

    def check(self, shape: ModelShape) -> None:
        """Raises InputError where a residual was not finite, or a residual or feed-forward update was never shown."""
        if len(self.streams) != shape.n_layers + 1:
            raise InputError(f"{len(self.streams)} residuals were read of {shape.n_layers + 1}; a hook did not fire")
        if (self.mlps or self.edits_at("mlp")) and tuple(sorted(self.updates)) != shape.mlp_layers:
            raise InputError(f"of the feed-forward layers {shape.mlp_layers}, only {sorted(self.updates)} were seen")
        for block, finite in enumerate(self.finite):
            if not finite:
                where = f"block {block - 1}" if block else "the embedding"
                raise InputError(
                    f"activations after {where} are not finite; check the weights, or load with dtype float32 or "
                    "bfloat16 (float16 overflows above 65,504)"
                )
