"""The linear maps to queries, keys and values in a model's attention layers, and edits of them for one pass."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from ...attention.shapes import ModelShape
from ...errors import InputError
from ...interventions.answers import Unchanged, alike
from ...interventions.edit import KEY_WEIGHTS, QUERY_WEIGHTS, VALUE_WEIGHTS, Edit, HeadWeights


class Projection(IntEnum):
    """What a linear map makes. The numbers are the order in which models keep the three maps."""

    QUERY = 0
    KEY = 1
    VALUE = 2


WEIGHT_SITES = {Projection.QUERY: QUERY_WEIGHTS, Projection.KEY: KEY_WEIGHTS, Projection.VALUE: VALUE_WEIGHTS}
FindWeights = Callable[[int, Projection], HeadWeights | None]  # of a layer and a projection


def weights_of(block: nn.Module, projection: Projection, d_head: int) -> HeadWeights | None:
    """What makes a block's queries, keys or values, as views of its parameters; None where unknown.

    `edited_weights` sets its `group`.
    """
    for module in block.modules():
        for names, (kind, find) in _LAYOUTS.items():
            part = getattr(module, names[projection], None)
            if isinstance(part, kind):
                return find(part, projection, d_head)
    return None


def weights_of_linear(linear: nn.Linear, d_head: int) -> HeadWeights:
    """The map of a linear module that makes queries, keys or values alone, as views of its parameters."""
    weight, bias = (None if t is None else t.unflatten(0, (-1, d_head)) for t in (linear.weight, linear.bias))
    return HeadWeights(weight, bias)


def _stacked(conv: Any, projection: Projection, d_head: int) -> HeadWeights:
    """GPT-2: one matrix `d_model, (projection head d_head)`."""
    weight, bias = (t.unflatten(-1, (3, -1, d_head))[..., projection, :, :] for t in (conv.weight, conv.bias))
    return HeadWeights(weight.movedim(0, -1), bias)


def _interleaved(linear: nn.Linear, projection: Projection, d_head: int) -> HeadWeights | None:
    """GPT-NeoX, Bloom: one matrix `(head projection d_head), d_model`; None for one of another shape (Falcon)."""
    if linear.out_features % (3 * d_head):
        return None
    together = weights_of_linear(linear, 3 * d_head)
    rows = slice(projection * d_head, (projection + 1) * d_head)
    return HeadWeights(together.weight[:, rows], None if together.bias is None else together.bias[:, rows])


_LAYOUTS: dict[tuple[str, str, str], tuple[type[nn.Module], Callable[..., HeadWeights | None]]] = {
    ("q_proj", "k_proj", "v_proj"): (nn.Linear, lambda linear, projection, d_head: weights_of_linear(linear, d_head)),
    ("q", "k", "v"): (nn.Linear, lambda linear, projection, d_head: weights_of_linear(linear, d_head)),
    ("c_attn",) * 3: (Conv1D, _stacked),
    ("query_key_value",) * 3: (nn.Linear, _interleaved),
}


@contextmanager
def edited_weights(shape: ModelShape, find: FindWeights, edits: Sequence[Edit]) -> Iterator[None]:
    """Inside, the maps that `find` gives are changed by the edits; after it they are restored, bit for bit.

    What somebody else adds to them inside, as training does, is kept.
    Raises InputError, with nothing changed, where an edit needs a map that is not found.
    """
    with torch.no_grad():
        changes = [change for layer in shape.attention_layers for change in _changes(layer, shape, find, edits)]
    saved: list[tuple[Tensor, Tensor, Tensor]] = []
    try:
        with torch.no_grad():
            for view, value in changes:
                before = view.clone()
                view.copy_(value)
                saved.append((view, before, view.clone()))
        yield
    finally:
        with torch.no_grad():
            for view, before, edited in reversed(saved):
                view.copy_(before if view.equal(edited) else before + (view - edited))


def _changes(
    layer: int, shape: ModelShape, find: FindWeights, edits: Sequence[Edit]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Views of a layer's parameters, with their new values."""
    for projection, site in WEIGHT_SITES.items():
        touching = [edit for edit in edits if site.touched_by(edit)]
        if not touching:
            continue
        original = find(layer, projection)
        heads = shape.n_heads if projection is Projection.QUERY else shape.n_kv_heads
        if original is None or original.weight.shape[:2] != (heads, shape.d_head):
            raise InputError(f"the {site.label} of layer {layer} are not found; edit its call instead")
        weight, bias = original.weight.clone(), None if original.bias is None else original.bias.clone()
        weights = before = HeadWeights(weight, bias, shape.n_heads // len(weight))
        for edit in touching:
            weights = _checked(
                Unchanged(weights).shown_to(partial(site.apply, edit), site.name_of(edit), layer),
                before,
                site.name_of(edit),
            )
        if weights is not before:
            yield original.weight, weights.weight
            if original.bias is not None and weights.bias is not None:  # both, or none
                yield original.bias, weights.bias


def _checked(answer: Any, weights: HeadWeights, who: str) -> HeadWeights:
    """What an edit made of weights. Raises InputError, which names the edit, where it cannot take their place."""
    if not isinstance(answer, HeadWeights):
        raise InputError(f"{who} returned a {type(answer).__name__}; it must return HeadWeights")
    alike(answer.weight, weights.weight, f"{who}, in weight,")
    if (answer.bias is None) != (weights.bias is None):
        raise InputError(f"{who} must return {'a' if answer.bias is None else 'no'} bias, as it was given")
    if answer.bias is not None and weights.bias is not None:
        alike(answer.bias, weights.bias, f"{who}, in bias,")
    return answer
