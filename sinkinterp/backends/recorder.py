"""Recorder: the reads and edits of one forward pass, and what the reads have returned so far."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..attention.call import AttentionCall
from ..attention.shapes import ModelShape
from ..checks import finite_number
from ..errors import InputError
from ..interventions.answers import Unchanged, alike, metric, with_axes
from ..interventions.edit import (
    CALL,
    MLP,
    OUTPUT,
    POSITION_EMBEDDING,
    RESIDUAL,
    TOKEN_EMBEDDING,
    WEIGHT_SITES,
    Edit,
    Site,
)
from .gap import Gap
from .layout import Group, Layout, Parts, changed
from .subject import CallRead, OutputRead, ResidualRead

Answers = dict[str, Tensor]  # by the name of the read


@dataclass
class Recorder:
    """Every backend shows it, in forward order, the embeddings and all residuals, calls and feed-forward updates.

    gradients: whether edits are to be differentiated. layout: where the tokens of a pass stand; None for whole
    sequences without padding. Edits are shown NaN in place of positions that a cache holds, so that positions count
    from the first token of each sequence.
    call_answers: of the reads of calls, by attention layer. residual_answers: of the reads of residuals, by block, then
    of the last output. mlp_answers: of the reads of feed-forward updates, by block. output_answers: of the reads of
    what heads return, by attention layer.
    finite: for each residual, whether all its entries are. size: how many sequences and positions the residuals have.
    mapped: the sites of weights, by layer, whose edits were made.
    """

    calls: Mapping[str, CallRead] = field(default_factory=dict)
    residuals: Mapping[str, ResidualRead] = field(default_factory=dict)
    mlps: Mapping[str, ResidualRead] = field(default_factory=dict)
    edits: Sequence[Edit] = ()
    gradients: bool = False
    layout: Layout | None = None
    outputs: Mapping[str, OutputRead] = field(default_factory=dict)
    call_answers: dict[int, Answers] = field(default_factory=dict)
    residual_answers: list[Answers] = field(default_factory=list)
    mlp_answers: dict[int, Answers] = field(default_factory=dict)
    output_answers: dict[int, Answers] = field(default_factory=dict)
    finite: list[Tensor] = field(default_factory=list)
    mapped: set[tuple[Site, int]] = field(default_factory=set)
    size: tuple[int, int] = (0, 0)

    def begin(self, edits: Sequence[Edit], layout: Layout) -> None:
        """Starts another forward pass, under these edits, differentiated where gradients are on."""
        self.edits, self.layout, self.gradients = edits, layout, torch.is_grad_enabled()
        kept = (self.call_answers, self.residual_answers, self.mlp_answers, self.output_answers)
        for answers in (*kept, self.finite, self.mapped):
            answers.clear()

    def edits_at(self, site: Site) -> bool:
        """Whether any edit changes what is at this site."""
        return any(map(site.touched_by, self.edits))

    @property
    def edits_weights(self) -> bool:
        """Whether any edit changes weights."""
        return any(map(self.edits_at, WEIGHT_SITES))

    def token_embedding(self, x: Tensor) -> Tensor:
        """What the table of tokens returns, after the edits."""
        return self._edited(TOKEN_EMBEDDING, x)

    def position_embedding(self, x: Tensor) -> Tensor:
        """What the table of positions returns, after the edits."""
        return self._edited(POSITION_EMBEDDING, x)

    def residual(self, x: Tensor) -> Tensor:
        """The next block's input after the edits; `x` itself where they do not change it."""
        if x.ndim != 3:
            raise InputError(
                f"blocks pass on {tuple(x.shape)} numbers, not one residual stream (sequence, position, d_model); such "
                "models (Gemma3n) cannot be read"
            )
        self.size = (x.shape[0], x.shape[1])
        x = self._edited(RESIDUAL, x, len(self.residual_answers))
        with torch.no_grad():
            self.finite.append(x.sum(dtype=torch.float32).isfinite())  # an infinity or NaN anywhere reaches the sum
            self.residual_answers.append(_answers(self.residuals, x))
        return x

    def parts(self, call: AttentionCall) -> Parts | None:
        """What a layer's edited call is made of, behind padding or a cache that has forgotten keys; None elsewhere."""
        layout = self.layout
        if layout is None or not layout.takes(call) or not (self.edits_at(CALL) or self.edits_at(OUTPUT)):
            return None
        if call.layer in self.call_answers:
            raise InputError(f"layer {call.layer} attends twice in one pass; such models cannot be read by layer")
        self.call_answers[call.layer] = {}
        return self._parts(call, layout)

    def attend(self, call: AttentionCall) -> AttentionCall:
        """A layer's call after the edits; `call` itself where they do not change it."""
        if call.layer in self.call_answers:
            raise InputError(f"layer {call.layer} attends twice in one pass; such models cannot be read by layer")
        if self.layout is not None and self.edits_at(CALL):
            self._rehearse(call, self.layout, self.edits)
        call = self._edited_call(call, self.edits)
        with torch.no_grad():
            self.call_answers[call.layer] = _answers(self.calls, call)
        return call

    def _edited_call(self, call: AttentionCall, edits: Sequence[Edit]) -> AttentionCall:
        with torch.set_grad_enabled(self.gradients):
            for edit in edits:
                if CALL.touched_by(edit):
                    call = _edited_call(edit, call)
            if self.calls:
                _ = call.is_fused  # its output is computed now: with gradients, and before a read could change it
        return call

    def _rehearse(self, call: AttentionCall, layout: Layout, edits: Sequence[Edit]) -> None:
        """Raises InputError where an edit could not be made in a later pass, whose cache has forgotten keys."""
        if layout.begins:
            k, v = (torch.cat((x, x[:, :, -1:]), 2) for x in (call.k, call.v))
            bias = None if call.bias is None else call.bias[:, :, -1:, [*range(call.bias.shape[-1]), -1]]
            mask = torch.ones(1, 1, 1, k.shape[2], dtype=torch.bool, device=k.device)
            later = replace(call, q=call.q[:, :, -1:], k=k, v=v, bias=bias, mask=mask)
            for hidden in layout.hidden_later(call):
                self._check_blind(later, hidden, edits)

    def _check_blind(self, call: AttentionCall, hidden: Tensor, edits: Sequence[Edit]) -> None:
        """Raises InputError where edits read hidden keys, which have numbers of no meaning then."""
        outputs = []
        for number in (0.0, 1.0):
            k, v = (x.masked_fill(hidden[:, None], number) for x in (call.k, call.v))
            blind = replace(call, k=k, v=v, mask=call.allowed() & ~hidden)
            outputs.append(self._edited_call(blind, edits).output())
            if not hidden.any():
                return
        if not Gap.of(*outputs).is_within(1e-5):
            why = f"an edit reads keys or values of layer {call.layer} that its cache forgets"
            raise InputError(f"{why}; generate with use_cache=False")

    def _parts(self, call: AttentionCall, layout: Layout) -> Parts:
        edited = tuple(self._edited_part(call, group, layout) for group in layout.groups)
        outputs = tuple(
            self._edited_group(OUTPUT, part.output(), group, part)
            for part, group in zip(edited, layout.groups, strict=True)
        )
        return Parts(call, layout, edited, outputs)

    def output(self, call: AttentionCall, z: Tensor) -> Tensor:
        """What the heads of `call` return, `batch head pos d_value`, after the edits."""
        edited = self._edited(OUTPUT, z, call)
        with torch.no_grad():
            self.output_answers[call.layer] = _answers(self.outputs, edited)
        return edited

    @property
    def shows_outputs(self) -> bool:
        """Whether anything reads or edits what heads return."""
        return bool(self.outputs) or self.edits_at(OUTPUT)

    def mlp(self, block: int, x: Tensor, factor: float = 1.0) -> Tensor:
        """A block's feed-forward output after the edits, which change `factor` times it: what the block adds.

        In OPT `x` has its sequences flattened.
        """
        update = x.view(*self.size, -1) if factor == 1 else x.view(*self.size, -1) * factor
        edited = self._edited(MLP, update, block)
        with torch.no_grad():
            shown = edited.clone() if self.mlps else edited  # Falcon then adds to it in place
            self.mlp_answers[block] = _answers(self.mlps, shown)
        if edited is update:
            return x
        return edited.reshape(x.shape) if factor == 1 else edited.reshape(x.shape) / factor

    def _edited_part(self, call: AttentionCall, group: Group, layout: Layout) -> AttentionCall:
        shown, edits = layout.shown(call, group), edits_for(self.edits, group, layout)
        if self.edits_at(CALL):
            self._rehearse(shown, layout, edits)
            hidden = group.columns < layout.n - call.k.shape[2]
            if hidden.any():
                self._check_blind(shown, hidden, edits)
        return self._edited_call(shown, edits)

    def _edited(self, site: Site, x: Tensor, *place: int | AttentionCall) -> Tensor:
        if not self.edits_at(site):
            return x
        if self.layout is None or self.layout.is_plain:
            group = None if self.layout is None else self.layout.groups[0]
            return self._edited_group(site, x, group, *place)
        return changed(self.layout, x, lambda group, shown: self._edited_group(site, shown, group, *place))

    def _edited_group(self, site: Site, x: Tensor, group: Group | None, *place: int | AttentionCall) -> Tensor:
        """The real tokens of some sequences after the edits; `x` itself where they do not change it."""
        past = 0 if group is None else group.past
        edits = self.edits if group is None or self.layout is None else edits_for(self.edits, group, self.layout)
        if group is not None and self.layout is not None and self.layout.begins and site is not OUTPUT:
            self._edited_from(site, x[..., -1:, :], past + x.shape[-2], edits, *place)  # as in the next pass
        return self._edited_from(site, x, past, edits, *place)

    def _edited_from(
        self, site: Site, x: Tensor, past: int, edits: Sequence[Edit], *place: int | AttentionCall
    ) -> Tensor:
        """What edits make of an `x` that stands behind `past` other positions."""
        unseen = x.new_full((*x.shape[:-2], past, x.shape[-1]), torch.nan)
        padded = edited = torch.cat((unseen, x), -2) if past else x
        with torch.set_grad_enabled(self.gradients):
            for edit in edits:
                if site.touched_by(edit):
                    who = site.name_of(edit)
                    edited = alike(Unchanged(edited).shown_to(partial(site.apply, edit), who, *place), edited, who)
        if edited is padded:
            return x
        shown = edited[..., past:, :]
        if past and shown.isnan().any() and not x.isnan().any():
            why = "an edit reads activations of earlier tokens, and a cache does not keep them"
            raise InputError(f"{why}; generate with use_cache=False")
        return shown

    def check(self, shape: ModelShape) -> None:
        """Raises InputError where a residual is not finite, or a residual or feed-forward update was not shown."""
        if len(self.residual_answers) != shape.n_layers + 1:
            raise InputError(
                f"{len(self.residual_answers)} residuals were read of {shape.n_layers + 1}; a hook did not fire"
            )
        if (self.mlps or self.edits_at(MLP)) and tuple(sorted(self.mlp_answers)) != shape.mlp_layers:
            raise InputError(
                f"of the feed-forward layers {shape.mlp_layers}, only {sorted(self.mlp_answers)} were seen"
            )
        for site in filter(self.edits_at, WEIGHT_SITES):
            for layer in shape.attention_layers:
                if (site, layer) not in self.mapped:
                    raise InputError(f"the {site.label} of layer {layer} are not found; edit its call instead")
        for block, finite in enumerate(self.finite):
            if not finite:
                where = f"block {block - 1}" if block else "the embedding"
                raise InputError(
                    f"activations after {where} are not finite; check the {'edits, the ' if self.edits else ''}"
                    "weights, or load with dtype float32 or bfloat16 (float16 overflows above 65,504)"
                )


def _answers(reads: Mapping[str, Callable[[Any], Tensor]], value: Tensor | AttentionCall) -> Answers:
    """What the reads return for a residual, an update or a call.

    Raises InputError, which names the read, for what is not a tensor with an axis, and where it changes the value.
    """
    if not reads:
        return {}
    shown = Unchanged(value)
    return {name: with_axes(shown.shown_to(read, metric(name)), metric(name)) for name, read in reads.items()}


def _edited_call(edit: Edit, call: AttentionCall) -> AttentionCall:
    """The call after an edit. Raises InputError, which names the edit, for anything that is not such a call."""
    who = CALL.name_of(edit)
    edited = Unchanged(call).shown_to(edit.call, who)
    if not isinstance(edited, AttentionCall) or edited.layer != call.layer:
        raise InputError(f"{who} returned {edited!r:.60}; it must return the call of layer {call.layer}")
    for name in ("q", "k", "v"):
        x = alike(getattr(edited, name), getattr(call, name), f"{who}, in {name},")
        if x is not getattr(call, name) and not x.sum(dtype=torch.float32).isfinite():  # attention may hide a NaN
            raise InputError(f"{who} makes {name} that are not finite in layer {call.layer}; check its numbers")
    if edited.mask is not None and edited.mask.dtype != torch.bool:
        raise InputError(f"{who} makes masks that are not torch.bool")
    for name in ("scale", "softcap"):
        value = getattr(edited, name)
        if value is not getattr(call, name) and value is not None:
            finite_number(value, f"{who}, in {name}: it")
    return edited


def edits_for(edits: Sequence[Edit], group: Group, layout: Layout) -> Sequence[Edit]:
    """The edits for the sequences of a group."""
    return edits if layout.is_plain else [edit.for_sequences(group.rows) for edit in edits]


def check_reads(**reads: Any) -> None:
    """Raises InputError unless each of these is a dictionary of functions, by the names of reads."""
    for name, given in reads.items():
        if not isinstance(given, Mapping) or not all(map(callable, given.values())):
            raise InputError(f"{name} are a dictionary of functions, {{'x': lambda x: x}}; got {given!r:.60}")


def stacked(layers: Sequence[Answers], device: torch.device) -> Answers:
    """Answers stacked over layers, `sequence layer ...`, from those of each layer, which may be on any device.

    Raises InputError where layers answer with different shapes.
    """
    for name in layers[0] if layers else ():
        shapes = {tuple(layer[name].shape) for layer in layers}
        if len(shapes) > 1:
            raise InputError(
                f"layers answer {name} with different shapes, {' and '.join(map(str, sorted(shapes)))}, so they cannot "
                "be put side by side; their heads differ in number or size"
            )
    return {name: torch.stack([layer[name].to(device) for layer in layers], 1) for name in layers[0]} if layers else {}
