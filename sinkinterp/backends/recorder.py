"""Recorder: the reads and edits of one forward pass, what the reads have returned so far, and where its tokens are.

Padding, and tokens that a cache holds or forgot, come before a token. Edits are shown every sequence from its
first real token. Sequences with the same padding are shown together.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor, nn

from ..attention import AttentionCall, Edit, Gap, Masks, ModelShape, Read, Site, Unchanged, metric, per_sequence, sites
from ..checks import InputError, refusing

Real = Bool[Tensor, "sequence column"]


@dataclass(frozen=True)
class Group:
    """Sequences whose padding is at the same places.

    rows: which sequences of the pass. columns: where their real tokens are, from the first that a cache was given to
    the last of this pass. past: how many of these come before this pass. new: where the others are in this pass.
    """

    rows: Int[Tensor, " row"]
    columns: Int[Tensor, " pos"]
    past: int
    new: Int[Tensor, " new"]

    def of(self, x: Tensor) -> Tensor:
        """The real tokens of these sequences, of a tensor `batch ... pos d` of this pass."""
        return x[self.rows][..., self.new, :]

    def put(self, x: Tensor, new: Tensor) -> Tensor:
        """A copy of such a tensor with other values for these tokens."""
        rows = x[self.rows].index_copy(-2, self.new, new)
        return x.index_copy(0, self.rows, rows)


@dataclass(frozen=True)
class Layout:
    """The places of the tokens of one pass.

    n: how many columns there are, of the cache and of this pass. n_new: of this pass. is_plain: whether there is no
    padding. forgets: for each layer of a cache that this pass begins to fill, whether it will forget keys; what later
    passes cannot do is refused now.
    """

    groups: tuple[Group, ...]
    n: int
    n_new: int
    is_plain: bool
    forgets: tuple[bool, ...] = ()

    def with_all_keys(self, call: AttentionCall, group: Group) -> AttentionCall:
        """The call of some sequences, with the keys of all their tokens; nobody sees those that a cache has forgotten.

        The keys and values of forgotten tokens are zero.
        """
        first = self.n - call.k.shape[2]  # the cache has forgotten the columns before it
        forgotten = int((group.columns < first).sum())
        kept = group.columns[forgotten:] - first

        def pairs(x: Tensor, value: float) -> Tensor:
            x = x if len(x) == 1 else x[group.rows]
            return F.pad(x[:, :, group.new][..., kept], (forgotten, 0), value=value)

        k, v = (F.pad(x[group.rows][:, :, kept], (0, 0, forgotten, 0)) for x in (call.k, call.v))
        bias = None if call.bias is None else pairs(call.bias.expand(-1, -1, self.n_new, -1), 0.0)
        mask = pairs(call.allowed().expand(-1, -1, self.n_new, -1), False)
        return replace(call, q=group.of(call.q), k=k, v=v, mask=mask, bias=bias)


def layout_of(mask: Any, batch: int, past: int, n_new: int, position_ids: Tensor | None, device: Any) -> Layout:
    """The places of the tokens of a pass. Raises InputError for masks that hide anything but padding.

    mask: what the model was given: tokens that are real, or pairs that may attend, by kind of layer.
    """
    n = past + n_new
    real = _real(mask, past, n_new, position_ids)
    if real is None or bool(real.all()):
        everything = torch.arange(n, device=device)
        group = Group(torch.arange(batch, device=device), everything, past, everything[:n_new])
        return Layout((group,), n, n_new, True)
    return Layout(tuple(_groups(real.to(device), past)), n, n_new, False)


def _groups(real: Real, past: int) -> Iterator[Group]:
    kinds, kind_of = real.unique(dim=0, return_inverse=True)
    for i, kind in enumerate(kinds):
        columns = kind.nonzero().flatten()
        new = columns[columns >= past] - past
        if len(new):
            yield Group((kind_of == i).nonzero().flatten(), columns, len(columns) - len(new), new)


def _real(mask: Any, past: int, n_new: int, position_ids: Tensor | None) -> Real | None:
    """Which tokens are real; None where all are."""
    if isinstance(mask, Mapping):
        mask = mask.get("full_attention", next(iter(mask.values())))
    if mask is None:
        return None
    n = past + n_new
    if not isinstance(mask, Tensor) or mask.ndim not in (2, 4) or (mask.ndim == 2 and mask.shape[1] < n):
        raise InputError(f"attention_mask is (sequence, pos), 0 for padding and 1 for a token, of {n} here or more")
    return mask[:, :n].bool() if mask.ndim == 2 else _real_of_pairs(mask, past, n_new, position_ids)


def _real_of_pairs(mask: Tensor, past: int, n_new: int, position_ids: Tensor | None) -> Real:
    """Which tokens are real, from the pairs that may attend; `generate` makes such a mask for static caches.

    Some tokens are seen by no query. The positions say how many of them come behind the padding.
    """
    pairs = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    pairs = F.pad(pairs[:, 0], (max(past + n_new - pairs.shape[-1], 0), 0))[..., : past + n_new]
    columns = torch.arange(past + n_new, device=mask.device)
    own = pairs.diagonal(past, 1, 2)
    if (pairs & (columns > columns[past:, None])).any() or (pairs.any(2) & ~own).any():
        raise InputError("a patched model takes masks of padding, not masks of its own; leave attention_mask out")
    seen = pairs[own.any(1)].any(1) if own.any(1).all() else pairs.any(1)
    if position_ids is None or position_ids.ndim != 2:
        return seen
    lacking = (position_ids[:, -1].to(mask.device) + 1).expand(len(seen)) - seen.sum(1)
    first = torch.where(seen, columns, len(columns)).amin(1)
    hidden = (columns < first[:, None]) & (columns >= (first - lacking)[:, None])
    return seen | hidden


def trimmed(layout: Layout | None, *tensors: Tensor | None) -> tuple[Any, ...]:
    """Keys, values and masks without the columns that a static cache has allocated for later tokens.

    The axis of columns is the third of keys and values, `batch kv_head key d`, given first and second, and the last of
    the others.
    """
    if layout is None:
        return tensors
    n = layout.n
    return tuple(x if x is None else x[:, :, :n] if i < 2 else x[..., :n] for i, x in enumerate(tensors))


Answers = dict[str, Tensor]  # by the name of the read
Weighted = tuple[Tensor, Tensor | None]  # what heads return, and their pattern where it is asked for


@dataclass
class Recorder:
    """Every backend shows it, in forward order, what flows through the sites that it reads or edits.

    gradients: whether edits are to be differentiated. layout: the places of a pass's tokens; None for whole
    sequences without padding. Edits are shown NaN in place of positions that a cache holds, so that positions count
    from the first token of each sequence.
    answers: of the reads of every site, by block. sums: of each residual's entries. masks: those of the pass. size: how
    many sequences and positions the residuals have; dtype: of their numbers. mapped: the sites of weights, by layer,
    whose edits were made. idle: the blocks that only pass on their input. layers: the block of every module whose calls
    it is shown; calls of other modules are left alone. n_kv_heads: see `StreamModules`.
    """

    reads: Mapping[str, Read] = field(default_factory=dict)
    edits: Sequence[Edit] = ()
    gradients: bool = False
    layout: Layout | None = None
    answers: dict[Site, dict[int, Answers]] = field(default_factory=lambda: defaultdict(dict))
    sums: list[Tensor] = field(default_factory=list)
    mapped: set[tuple[Site, int]] = field(default_factory=set)
    size: tuple[int, int] = (0, 0)
    dtype: torch.dtype = torch.float32
    idle: frozenset[int] = frozenset()
    layers: Mapping[nn.Module, int] = field(default_factory=dict)
    n_kv_heads: int = 1
    masks: Masks = field(default_factory=Masks)

    def begin(self, edits: Sequence[Edit], layout: Layout) -> None:
        """Starts another forward pass, under these edits, differentiated where gradients are on."""
        self.edits, self.layout, self.gradients = edits, layout, torch.is_grad_enabled()
        self.masks = Masks()
        for seen in (self.answers, self.sums, self.mapped):
            seen.clear()

    def reads_at(self, site: Site) -> dict[str, Read]:
        """The reads of this site, by name."""
        return {name: read for name, read in self.reads.items() if read.site is site}

    def uses(self, site: Site) -> bool:
        """Whether anything reads or edits what is at this site."""
        return bool(self.reads_at(site)) or self.edits_at(site)

    def edits_at(self, site: Site) -> bool:
        """Whether any edit changes what is at this site."""
        return any(edit.touches(site) for edit in self.edits)

    @property
    def edits_weights(self) -> bool:
        """Whether any edit changes weights."""
        return any(map(self.edits_at, sites.WEIGHT_SITES))

    def residual(self, x: Tensor) -> Tensor:
        """The next block's input after the edits; `x` itself where they do not change it."""
        if x.ndim != 3:
            raise InputError(f"blocks pass on {tuple(x.shape)} numbers, not one residual stream")
        block = len(self.answers[sites.RESIDUAL])
        if block and x.shape[1] != self.size[1]:
            rows = f"{x.shape[1]} rows behind block {block - 1}, of {self.size[1]}"
            raise InputError(f"blocks pass on {rows}, so which positions these are is not known")
        self.size, self.dtype = (x.shape[0], x.shape[1]), x.dtype
        x = self.edited(sites.RESIDUAL, x, block)
        self.sums.append(x.detach().sum(dtype=torch.float32))  # an infinity or NaN anywhere reaches it
        self._keep_answers(sites.RESIDUAL, block, x)
        return x

    def _keep_answers(self, site: Site, block: int, value: Tensor | AttentionCall) -> None:
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

    def attended(
        self,
        call: AttentionCall,
        plain: Callable[[], Weighted],
        is_exact: bool = False,
        shows_weights: bool = False,
        drops: bool = False,
    ) -> Weighted:
        """What the heads of a layer's call return after the edits, and with `shows_weights` the pattern on its keys.

        plain: returns both without edits. is_exact: whether the call's own output is the same, bit for bit. drops:
        whether weights are dropped at random. A call behind padding, or behind a cache that has forgotten keys, is
        edited in parts. Raises InputError for an edit of a call that drops weights.
        """
        layout, is_edited = self.layout, self.edits_at(sites.CALL) or self.edits_at(sites.OUTPUT)
        in_parts = layout is not None and is_edited and (not layout.is_plain or call.k.shape[2] != layout.n)
        edited = call if in_parts else self.edited_call(call)
        if drops and (in_parts or edited is not call):
            raise InputError("edits of attention compute it without dropout; call model.eval(), or set it to 0")
        if layout is not None and in_parts:
            return self._attended_in_parts(call, layout, shows_weights)
        if edited is call and not (is_exact and call.is_fused):
            z, weights = plain()
        else:
            z, weights = edited.output(), edited.pattern()[..., -call.k.shape[2] :] if shows_weights else None
        return self.output(edited, z), weights

    def _attended_in_parts(self, call: AttentionCall, layout: Layout, shows_weights: bool) -> Weighted:
        """As `attended`, where every group of sequences is edited on its own; zero for padding."""
        self._check_first(call)
        self.answers[sites.CALL][call.layer] = self.answers[sites.OUTPUT][call.layer] = {}
        size, n_keys = call.q.shape[:3], call.k.shape[2]
        first = layout.n - n_keys
        z = call.v.new_zeros(*size, call.v.shape[-1])
        pattern = call.q.new_zeros(*size, n_keys) if shows_weights else None
        for group in layout.groups:
            part = self._edited_part(call, group, layout)
            z = group.put(z, self._edited_group(sites.OUTPUT, part.output(), layout, group, part))
            if pattern is not None:
                kept = group.columns[group.columns >= first] - first
                weights = part.pattern()[..., -len(kept) :].to(pattern.dtype)
                empty = pattern.new_zeros(*weights.shape[:3], n_keys)
                pattern = group.put(pattern, empty.index_copy(-1, kept, weights))
        return z, pattern

    def edited_call(self, call: AttentionCall) -> AttentionCall:
        """A layer's call after the edits; `call` itself where they do not change it."""
        self._check_first(call)
        if self.layout is not None and self.edits_at(sites.CALL):
            self._rehearse(call, self.layout, self.edits)
        call = self._call_under(call, self.edits)
        self._keep_answers(sites.CALL, call.layer, call)
        return call

    def _call_under(self, call: AttentionCall, edits: Sequence[Edit]) -> AttentionCall:
        with torch.set_grad_enabled(self.gradients):
            call = sites.CALL.edited(call, edits)
            if self.reads_at(sites.CALL):
                _ = call.is_fused  # its output is computed now: with gradients, and before a read could change it
        return call

    def _rehearse(self, call: AttentionCall, layout: Layout, edits: Sequence[Edit]) -> None:
        """Raises InputError where an edit could not be made in a later pass, whose cache has forgotten keys.

        That may be any keys but the last: of every two, one is hidden here at least once, and the other is not.
        """
        if not layout.forgets:
            return
        n, k, v = call.k.shape[2], *(torch.cat((x, x[:, :, -1:]), 2) for x in (call.k, call.v))
        bias = None if call.bias is None else call.bias[:, :, -1:, [*range(call.bias.shape[-1]), -1]]
        mask = torch.ones(1, 1, 1, n + 1, dtype=torch.bool, device=k.device)
        later = replace(call, q=call.q[:, :, -1:], k=k, v=v, bias=bias, mask=mask)
        keys = torch.arange(n + 1, device=k.device)
        bits = range(n.bit_length() if call.layer < len(layout.forgets) and layout.forgets[call.layer] else 0)
        for hidden in (*(((keys >> bit) & 1 == 0) & (keys < n) for bit in bits), keys < 0):
            self._check_blind(later, hidden, edits)

    def _check_blind(self, call: AttentionCall, hidden: Tensor, edits: Sequence[Edit]) -> None:
        """Raises InputError where edits read hidden keys, which have numbers of no meaning then."""
        outputs = []
        for number in (0.0, 1.0):
            k, v = (x.masked_fill(hidden[:, None], number) for x in (call.k, call.v))
            blind = replace(call, k=k, v=v, mask=call.allowed() & ~hidden)
            outputs.append(self._call_under(blind, edits).output())
            if not hidden.any():
                return
        why = f"an edit reads keys or values of layer {call.layer} that its cache forgets"
        Gap.of(*outputs).check(1e-5, why, "generate with use_cache=False")

    def output(self, call: AttentionCall, z: Tensor) -> Tensor:
        """Returns what the heads of `call` return, `batch head pos d_value`, after the edits."""
        edited = self.edited(sites.OUTPUT, z, call)
        self._keep_answers(sites.OUTPUT, call.layer, edited)
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
        self._keep_answers(site, block, shown)
        if edited is scaled:
            return x
        return edited.reshape(x.shape) if factor == 1 else edited.reshape(x.shape) / factor

    def _edited_part(self, call: AttentionCall, group: Group, layout: Layout) -> AttentionCall:
        shown, edits = layout.with_all_keys(call, group), edits_for(self.edits, group, layout)
        if self.edits_at(sites.CALL):
            self._rehearse(shown, layout, edits)
            hidden = group.columns < layout.n - call.k.shape[2]
            if hidden.any():
                self._check_blind(shown, hidden, edits)
        return self._call_under(shown, edits)

    def edited(self, site: Site, x: Tensor, *place: int | AttentionCall) -> Tensor:
        """What is at a site after the edits; `x` itself where they do not change it. place: see `Edit`."""
        layout = self.layout
        if not self.edits_at(site):
            return x
        if layout is None:
            return self._edited_from(site, x, 0, self.edits, *place)
        if layout.is_plain:
            return self._edited_group(site, x, layout, layout.groups[0], *place)
        if len(x) == 1:
            x = x.expand(1 + max(int(group.rows.max()) for group in layout.groups), *x.shape[1:])
        edited = x
        for group in layout.groups:
            shown = group.of(x)
            new = self._edited_group(site, shown, layout, group, *place)
            edited = edited if new is shown else group.put(edited, new)
        return edited

    def _edited_group(self, site: Site, x: Tensor, layout: Layout, group: Group, *place: int | AttentionCall) -> Tensor:
        """The real tokens of some sequences after the edits; `x` itself where they do not change it."""
        edits = edits_for(self.edits, group, layout)
        if layout.forgets and site is not sites.OUTPUT:
            self._edited_from(site, x[..., -1:, :], group.past + x.shape[-2], edits, *place)  # as in the next pass
        return self._edited_from(site, x, group.past, edits, *place)

    def _edited_from(
        self, site: Site, x: Tensor, past: int, edits: Sequence[Edit], *place: int | AttentionCall
    ) -> Tensor:
        """What edits make of an `x` that stands behind `past` other positions."""
        unseen = x.new_full((*x.shape[:-2], past, x.shape[-1]), torch.nan)
        padded = torch.cat((unseen, x), -2) if past else x
        with torch.set_grad_enabled(self.gradients):
            edited = site.edited(padded, edits, *place)
        if edited is padded:
            return x
        shown = edited[..., past:, :]
        if past and shown.isnan().any() and not x.isnan().any():
            why = "an edit reads activations of earlier tokens, and a cache does not keep them"
            raise InputError(f"{why}; generate with use_cache=False")
        return shown

    def stacked_answers(self, shape: ModelShape, device: torch.device) -> Answers:
        """The answers of all reads on one device, `sequence layer ...` over the layers of their sites.

        Raises InputError as `check` does, and where layers answer with different shapes.
        """
        self.check(shape)
        stacked = Answers()
        for name, read in self.reads.items():
            seen = self.answers.get(read.site, {})
            layers = [seen[block][name].to(device) for block in sorted(seen)]
            shapes = sorted({tuple(answer.shape) for answer in layers})
            if len(shapes) > 1:
                raise InputError(f"layers answer {name} with different shapes, {' and '.join(map(str, shapes))}")
            if layers:
                stacked[name] = torch.stack(layers, 1)
        return stacked

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
        is_finite = torch.stack([x.to(self.sums[0].device) for x in self.sums]).isfinite().tolist()
        if not all(is_finite):
            first = is_finite.index(False)
            where = f"block {first - 1}" if first else "the embedding"
            fix = '; float16 ends at 65,504: load it with dtype="bfloat16"' * (self.dtype is torch.float16)
            yield f"activations after {where} are not finite{fix}"


def edits_for(edits: Sequence[Edit], group: Group, layout: Layout) -> Sequence[Edit]:
    """The edits for the sequences of a group."""
    return edits if layout.is_plain else [edit.for_sequences(group.rows) for edit in edits]
