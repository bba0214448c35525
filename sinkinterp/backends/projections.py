"""The maps to queries, keys and values inside a model's attention layers: views that edits change for one pass."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from ..attention.model_shape import ModelShape
from ..errors import InputError
from ..interventions.edit import KEY_WEIGHTS, QUERY_WEIGHTS, VALUE_WEIGHTS, Edit, HeadWeights


class Role(IntEnum):
    """What a map makes: its place in the order in which models keep the three."""

    QUERY = 0
    KEY = 1
    VALUE = 2


WEIGHT_SITES = {Role.QUERY: QUERY_WEIGHTS, Role.KEY: KEY_WEIGHTS, Role.VALUE: VALUE_WEIGHTS}
FindWeights = Callable[[int, Role], HeadWeights | None]  # of a layer and a role


def weights_of(block: nn.Module, role: Role, d_head: int) -> HeadWeights | None:
    """What makes a block's queries, keys or values, as views of its parameters; None where unknown.

    `edited_weights` sets its `group`.
    """
    for module in block.modules():
        for names, (kind, find) in _LAYOUTS.items():
            part = getattr(module, names[role], None)
            if isinstance(part, kind):
                return find(part, role, d_head)
    return None


def weights_of_linear(linear: nn.Linear, d_head: int) -> HeadWeights:
    """The map of a linear module that makes queries, keys or values alone, as views of its parameters."""
    weight, bias = (None if t is None else t.unflatten(0, (-1, d_head)) for t in (linear.weight, linear.bias))
    return HeadWeights(weight, bias)


def _stacked(conv: Any, role: Role, d_head: int) -> HeadWeights:
    """GPT-2: one matrix `d_model, (role head d_head)`."""
    weight, bias = (t.unflatten(-1, (3, -1, d_head))[..., role, :, :] for t in (conv.weight, conv.bias))
    return HeadWeights(weight.movedim(0, -1), bias)


def _interleaved(linear: nn.Linear, role: Role, d_head: int) -> HeadWeights | None:
    """GPT-NeoX, Bloom: one matrix `(head role d_head), d_model`; None for one of another shape (Falcon)."""
    if linear.out_features % (3 * d_head):
        return None
    together = weights_of_linear(linear, 3 * d_head)
    rows = slice(role * d_head, (role + 1) * d_head)
    return HeadWeights(together.weight[:, rows], None if together.bias is None else together.bias[:, rows])


_LAYOUTS: dict[tuple[str, str, str], tuple[type[nn.Module], Callable[..., HeadWeights | None]]] = {
    ("q_proj", "k_proj", "v_proj"): (nn.Linear, lambda linear, role, d_head: weights_of_linear(linear, d_head)),
    ("q", "k", "v"): (nn.Linear, lambda linear, role, d_head: weights_of_linear(linear, d_head)),
    ("c_attn",) * 3: (Conv1D, _stacked),
    ("query_key_value",) * 3: (nn.Linear, _interleaved),
}


@contextmanager
def edited_weights(shape: ModelShape, find: FindWeights, edits: Sequence[Edit]) -> Iterator[None]:
    """Inside, the maps that `find` gives are changed by the edits; after it they are restored, bit for bit.

    Raises InputError, with nothing changed, where an edit needs a map that is not found.
    """
    with torch.no_grad():
        changes = [change for layer in shape.attention_layers for change in _changes(layer, shape, find, edits)]
    before: list[tuple[Tensor, Tensor]] = []
    try:
        with torch.no_grad():
            for view, value in changes:
                before.append((view, view.clone()))
                view.copy_(value)
        yield
    finally:
        with torch.no_grad():
            for view, value in reversed(before):
                view.copy_(value)


def _changes(
    layer: int, shape: ModelShape, find: FindWeights, edits: Sequence[Edit]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Views of a layer's parameters, with their new values."""
    for role, site in WEIGHT_SITES.items():
        touching = [edit for edit in edits if site.touched_by(edit)]
        if not touching:
            continue
        original = find(layer, role)
        heads = shape.n_heads if role is Role.QUERY else shape.n_kv_heads
        if original is None or original.weight.shape[:2] != (heads, shape.d_head):
            raise InputError(f"the {site.label} of layer {layer} are not found; edit its call instead")
        weights = original = replace(original, group=shape.n_heads // len(original.weight))
        for edit in touching:
            weights = site.apply(edit, layer, weights)
        if weights is not original:
            yield original.weight, weights.weight
            if original.bias is not None and weights.bias is not None:
                yield original.bias, weights.bias
