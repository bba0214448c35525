"""The places of a pass's tokens in their sequences: behind padding, and behind tokens that a cache holds or forgot.

Edits are shown every sequence from its first real token. Sequences with the same padding are shown together.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor

from ..attention import AttentionCall
from ..checks import Frozen, InputError

Real = Bool[Tensor, "sequence column"]


class Group(Frozen):
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


class Layout(Frozen):
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

    def shown(self, call: AttentionCall, group: Group) -> AttentionCall:
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

    def hidden_later(self, call: AttentionCall) -> Iterator[Bool[Tensor, " key"]]:
        """Sets of keys of which later calls of this layer may lack one: every two keys are told apart by one of them.

        The last key is one more than the call has.
        """
        keys = torch.arange(call.k.shape[2] + 1, device=call.k.device)
        if call.layer < len(self.forgets) and self.forgets[call.layer]:
            for bit in range(call.k.shape[2].bit_length()):
                yield ((keys >> bit) & 1 == 0) & (keys < len(keys) - 1)
        yield keys < 0

    def takes(self, call: AttentionCall) -> bool:
        """Whether a call has to be shown in parts: the others are as edits expect them."""
        return not self.is_plain or call.k.shape[2] != self.n


class Parts(Frozen):
    """A call whose groups of sequences were edited, each on its own.

    outputs: what the heads of each group return, after the edits.
    """

    call: AttentionCall
    layout: Layout
    edited: tuple[AttentionCall, ...]
    outputs: tuple[Tensor, ...]

    def output(self) -> Tensor:
        """What the heads return for all sequences; zero for padding."""
        z = self.outputs[0].new_zeros(*self.call.q.shape[:3], self.outputs[0].shape[-1])
        for group, part in zip(self.layout.groups, self.outputs, strict=True):
            z = group.put(z, part)
        return z

    def weights(self) -> Tensor:
        """The pattern on the keys of the cache, without a slot's column; zero for padding."""
        first = self.layout.n - self.call.k.shape[2]
        pattern = self.call.q.new_zeros(*self.call.q.shape[:3], self.call.k.shape[2])
        for group, call in zip(self.layout.groups, self.edited, strict=True):
            kept = group.columns[group.columns >= first] - first
            weights = call.pattern()[..., -len(kept) :].to(pattern.dtype)
            empty = pattern.new_zeros(*weights.shape[:3], pattern.shape[-1])
            pattern = group.put(pattern, empty.index_copy(-1, kept, weights))
        return pattern


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


Change = Callable[[Group, Tensor], Tensor]


def changed(layout: Layout, x: Tensor, change: Change) -> Tensor:
    """A tensor `batch ... pos d` of a pass, after `change` of the real tokens of each group."""
    if len(x) == 1 and not layout.is_plain:
        x = x.expand(1 + max(int(group.rows.max()) for group in layout.groups), *x.shape[1:])
    edited = x
    for group in layout.groups:
        shown = group.of(x)
        new = change(group, shown)
        edited = edited if new is shown else group.put(edited, new)
    return edited
