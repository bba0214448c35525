"""Recorder: the reads and edits of one forward pass, and what the reads have returned so far."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..attention import AttentionCall, Edit, Gap, ModelShape, Read, Site, Unchanged, alike, metric, per_sequence, sites
from ..checks import InputError, finite_number, refusing
from .layout import Group, Layout, Parts, changed

Answers = dict[str, Tensor]  # by the name of the read


@dataclass
class Recorder:
    """Every backend shows it, in forward order, what flows through the sites that it reads or edits.

    gradients: whether edits are to be differentiated. layout: the places of a pass's tokens; None for whole
    sequences without padding. Edits are shown NaN in place of positions that a cache holds, so that positions count
    from the first token of each sequence.
    answers: of the reads of every site, by block. finite: for each residual, whether all its entries are. size: how
    many sequences and positions the residuals have. mapped: the sites of weights, by layer, whose edits were made.
    idle: the blocks that only pass on their input.
    """

    reads: Mapping[str, Read] = field(default_factory=dict)
    edits: Sequence[Edit] = ()
    gradients: bool = False
    layout: Layout | None = None
    answers: dict[Site, dict[int, Answers]] = field(default_factory=lambda: defaultdict(dict))
    finite: list[Tensor] = field(default_factory=list)
    mapped: set[tuple[Site, int]] = field(default_factory=set)
    size: tuple[int, int] = (0, 0)
    idle: frozenset[int] = frozenset()

    def begin(self, edits: Sequence[Edit], layout: Layout) -> None:
        """Starts another forward pass, under these edits, differentiated where gradients are on."""
        self.edits, self.layout, self.gradients = edits, layout, torch.is_grad_enabled()
        for seen in (self.answers, self.finite, self.mapped):
            seen.clear()

    def reads_at(self, site: Site) -> dict[str, Read]:
        """The reads of this site, by name."""
        return {name: read for name, read in self.reads.items() if read.site is site}

    def uses(self, site: Site) -> bool:
        """Whether anything reads or edits what is at this site."""
        return bool(self.reads_at(site)) or self.edits_at(site)

    def edits_at(self, site: Site) -> bool:
        """Whether any edit changes what is at this site."""
        return any(map(site.touched_by, self.edits))

    @property
    def edits_weights(self) -> bool:
        """Whether any edit changes weights."""
        return any(map(self.edits_at, sites.WEIGHT_SITES))

    def residual(self, x: Tensor) -> Tensor:
        """The next block's input after the edits; `x` itself where they do not change it."""
        if x.ndim != 3:
            raise InputError(f"blocks pass on {tuple(x.shape)} numbers, not one residual stream; take another family")
        self.size = (x.shape[0], x.shape[1])
        block = len(self.answers[sites.RESIDUAL])
        x = self.edited(sites.RESIDUAL, x, block)
        self.finite.append(x.detach().sum(dtype=torch.float32).isfinite())  # an infinity or NaN anywhere reaches it
        self._answer(sites.RESIDUAL, block, x)
        return x

    def _answer(self, site: Site, block: int, value: Tensor | AttentionCall) -> None:
        """Keeps what the reads of a site return. Raises InputError for answers that are not tensors with an axis."""
        answers = self.answers[site][block] = Answers()
        if reads := self.reads_at(site):
            shown = Unchanged(value)
            with torch.no_grad():
                for name, read in reads.items():
                    answers[name] = per_sequence(shown.shown_to(read.function, metric(name)), None, metric(name))

    def _check_first(self, call: AttentionCall) -> None:
        if call.layer in self.answers[sites.CALL]:
            raise InputError(f"layer {call.layer} attends twice in one pass; such models cannot be read by layer")

    def parts(self, call: AttentionCall) -> Parts | None:
        """The parts of a layer's edited call, behind padding or a cache that has forgotten keys; None elsewhere."""
        layout = self.layout
        if layout is None or not layout.takes(call) or not (self.edits_at(sites.CALL) or self.edits_at(sites.OUTPUT)):
            return None
        self._check_first(call)
        self.answers[sites.CALL][call.layer] = self.answers[sites.OUTPUT][call.layer] = {}
        edited = tuple(self._edited_part(call, group, layout) for group in layout.groups)
        outputs = tuple(
            self._edited_group(sites.OUTPUT, part.output(), group, part)
            for part, group in zip(edited, layout.groups, strict=True)
        )
        return Parts(call, layout, edited, outputs)

    def attend(self, call: AttentionCall) -> AttentionCall:
        """A layer's call after the edits; `call` itself where they do not change it."""
        self._check_first(call)
        if self.layout is not None and self.edits_at(sites.CALL):
            self._rehearse(call, self.layout, self.edits)
        call = self._edited_call(call, self.edits)
        self._answer(sites.CALL, call.layer, call)
        return call

    def _edited_call(self, call: AttentionCall, edits: Sequence[Edit]) -> AttentionCall:
        with torch.set_grad_enabled(self.gradients):
            for edit in edits:
                if sites.CALL.touched_by(edit):
                    call = _edited_call(edit, call)
            if self.reads_at(sites.CALL):
                _ = call.is_fused  # its output is computed now: with gradients, and before a read could change it
        return call

    def _rehearse(self, call: AttentionCall, layout: Layout, edits: Sequence[Edit]) -> None:
        """Raises InputError where an edit could not be made in a later pass, whose cache has forgotten keys."""
        if layout.forgets:
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
        why = f"an edit reads keys or values of layer {call.layer} that its cache forgets"
        Gap.of(*outputs).check(1e-5, why, "generate with use_cache=False")

    def output(self, call: AttentionCall, z: Tensor) -> Tensor:
        """Returns what the heads of `call` return, `batch head pos d_value`, after the edits."""
        edited = self.edited(sites.OUTPUT, z, call)
        self._answer(sites.OUTPUT, call.layer, edited)
        return edited

    def update(self, site: Site, block: int, x: Tensor, factor: float = 1.0) -> Tensor:
        """Returns what a block's module returns at a site after the edits, which change `factor` times it.

        In OPT `x` has its sequences flattened.
        """
        if not self.uses(site):
            return x
        scaled = x.view(*self.size, -1) if factor == 1 else x.view(*self.size, -1) * factor
        edited = self.edited(site, scaled, block)
        shown = edited.clone() if self.reads_at(site) else edited  # Falcon then adds to it in place
        self._answer(site, block, shown)
        if edited is scaled:
            return x
        return edited.reshape(x.shape) if factor == 1 else edited.reshape(x.shape) / factor

    def _edited_part(self, call: AttentionCall, group: Group, layout: Layout) -> AttentionCall:
        shown, edits = layout.shown(call, group), edits_for(self.edits, group, layout)
        if self.edits_at(sites.CALL):
            self._rehearse(shown, layout, edits)
            hidden = group.columns < layout.n - call.k.shape[2]
            if hidden.any():
                self._check_blind(shown, hidden, edits)
        return self._edited_call(shown, edits)

    def edited(self, site: Site, x: Tensor, *place: int | AttentionCall) -> Tensor:
        """What is at a site after the edits; `x` itself where they do not change it. place: see `Edit`."""
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
        if group is not None and self.layout is not None and self.layout.forgets and site is not sites.OUTPUT:
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

    def answered(self, shape: ModelShape, device: torch.device) -> Answers:
        """The answers of all reads, stacked over the layers of their sites. Raises InputError as `check` does."""
        self.check(shape)
        of_sites = (stacked([x[block] for block in sorted(x)], device) for x in self.answers.values() if x)
        return {name: answer for answers in of_sites for name, answer in answers.items()}

    @refusing
    def check(self, shape: ModelShape) -> Iterator[str]:
        """Raises InputError where a residual is not finite, or a site that every block has was not shown."""
        for site in sites.BLOCK_SITES:
            seen = sorted(self.answers[site])
            layers = [block for block in site.layers(shape) if site is sites.RESIDUAL or block not in self.idle]
            if seen != layers and (site in (sites.RESIDUAL, sites.CALL) or self.uses(site)):
                yield f"the {site.label} of blocks {seen} was seen, not of {layers}; a hook did not fire"
        for site in filter(self.edits_at, sites.WEIGHT_SITES):
            for layer in set(shape.attention_layers) - self.idle:
                if (site, layer) not in self.mapped:
                    yield f"the {site.label} of layer {layer} are not found; edit its call instead"
        at_once = torch.stack([finite.to(self.finite[0].device) for finite in self.finite])
        if not at_once.all():
            first = at_once.tolist().index(False)
            where = f"block {first - 1}" if first else "the embedding"
            yield f"activations after {where} are not finite; check edits and weights, or load with dtype='bfloat16'"


def _edited_call(edit: Edit, call: AttentionCall) -> AttentionCall:
    """The call after an edit. Raises InputError, which names the edit, for anything that is not such a call."""
    who = sites.CALL.name_of(edit)
    edited = Unchanged(call).shown_to(edit.call, who)
    _check_call(edited, call, who)
    return edited


@refusing
def _check_call(edited: Any, call: AttentionCall, who: str) -> Iterator[str]:
    if not isinstance(edited, AttentionCall) or edited.layer != call.layer:
        yield f"{who} returned {edited!r:.60}; it must return the call of layer {call.layer}"
    for name in ("q", "k", "v"):
        x = alike(getattr(edited, name), getattr(call, name), f"{who}, in {name},")
        if x is not getattr(call, name) and not x.sum(dtype=torch.float32).isfinite():  # attention may hide a NaN
            yield f"{who} makes {name} that are not finite in layer {call.layer}; check its numbers"
    if edited.mask is not None and edited.mask.dtype != torch.bool:
        yield f"{who} makes masks that are not torch.bool"
    for name in ("scale", "softcap"):
        value = getattr(edited, name)
        if value is not getattr(call, name) and value is not None:
            finite_number(value, f"{who}, in {name}: it")


def edits_for(edits: Sequence[Edit], group: Group, layout: Layout) -> Sequence[Edit]:
    """The edits for the sequences of a group."""
    return edits if layout.is_plain else [edit.for_sequences(group.rows) for edit in edits]


def stacked(layers: Sequence[Answers], device: torch.device) -> Answers:
    """Answers stacked over layers, `sequence layer ...`, from those of each layer, which may be on any device.

    Raises InputError where layers answer with different shapes.
    """
    for name in layers[0]:
        shapes = {tuple(layer[name].shape) for layer in layers}
        if len(shapes) > 1:
            sizes = " and ".join(map(str, sorted(shapes)))
            fix = "take another family, or a read with one shape"
            raise InputError(f"layers answer {name} with different shapes, {sizes}; {fix}")
    return {name: torch.stack([layer[name].to(device) for layer in layers], 1) for name in layers[0]}
