"""The maps to queries, keys and values inside a model's attention layers: views that edits change for one pass."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from ..attention.model_shape import ModelShape
from ..errors import InputError
from ..interventions.edit import Edit, HeadWeights, touches

SITES = ("query_weights", "key_weights", "value_weights")
Find = Callable[[int, int], HeadWeights | None]


def weights_of(block: nn.Module, role: int, d_head: int) -> HeadWeights | None:
    """What makes a block's queries, keys or values (role 0, 1, 2), as views of its parameters; None where unknown.

    Its `group` is for `edited_weights` to say.
    """
    for module in block.modules():
        for name, (kind, find) in _LAYOUTS.items():
            own = getattr(module, name[role], None)
            if isinstance(own, kind):
                return find(own, role, d_head)
    return None


def apart(linear: nn.Linear, d_head: int) -> HeadWeights:
    """A map of its own for queries, keys or values, as views of its parameters."""
    weight, bias = (None if t is None else t.unflatten(0, (-1, d_head)) for t in (linear.weight, linear.bias))
    return HeadWeights(weight, bias)


def _stacked(conv: Any, role: int, d_head: int) -> HeadWeights:
    """GPT-2: one matrix `d_model, (role head d_head)`."""
    weight, bias = (t.unflatten(-1, (3, -1, d_head))[..., role, :, :] for t in (conv.weight, conv.bias))
    return HeadWeights(weight.movedim(0, -1), bias)


def _interleaved(linear: nn.Linear, role: int, d_head: int) -> HeadWeights:
    """GPT-NeoX: one matrix `(head role d_head), d_model`."""
    together = apart(linear, 3 * d_head)
    own = slice(role * d_head, (role + 1) * d_head)
    return HeadWeights(together.weight[:, own], None if together.bias is None else together.bias[:, own])


_LAYOUTS: dict[tuple[str, str, str], tuple[type[nn.Module], Callable[..., HeadWeights]]] = {
    ("q_proj", "k_proj", "v_proj"): (nn.Linear, lambda linear, role, d_head: apart(linear, d_head)),
    ("c_attn",) * 3: (Conv1D, _stacked),
    ("query_key_value",) * 3: (nn.Linear, _interleaved),
}


@contextmanager
def edited_weights(shape: ModelShape, find: Find, edits: Sequence[Edit]) -> Iterator[None]:
    """The model with its maps as the edits leave them, and back, bit for bit, whatever happens.

    `find(layer, role)` is the map that makes a layer's queries, keys or values, as views of parameters. Raises
    InputError, with nothing changed, where an edit asks for a map that is not found.
    """
    before: list[tuple[Tensor, Tensor]] = []
    try:
        with torch.no_grad():
            for view, value in [
                change for layer in shape.attention_layers for change in _changes(layer, shape, find, edits)
            ]:
                before.append((view, view.clone()))
                view.copy_(value)
        yield
    finally:
        with torch.no_grad():
            for view, value in reversed(before):
                view.copy_(value)


def _changes(layer: int, shape: ModelShape, find: Find, edits: Sequence[Edit]) -> Iterator[tuple[Tensor, Tensor]]:
    for role, site in enumerate(SITES):
        edited = [edit for edit in edits if touches(edit, site)]
        if not edited:
            continue
        own = find(layer, role)
        heads = shape.n_kv_heads if role else shape.n_heads
        if own is None or own.weight.shape[:2] != (heads, shape.d_head):
            raise InputError(f"the {site.replace('_', ' ')} of layer {layer} are not found; edit its call instead")
        weights = own = replace(own, group=shape.n_heads // len(own.weight))
        for edit in edited:
            weights = getattr(edit, site)(layer, weights)
        if weights is not own:
            yield own.weight, weights.weight
            if own.bias is not None and weights.bias is not None:
                yield own.bias, weights.bias
