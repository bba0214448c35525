"""The linear maps to queries, keys and values in a model's attention layers, and edits of their weights.

Nothing is written into a model: what a map returns changes by what the edits change in its weights.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from ...attention.shapes import Gap, ModelShape, Unchanged, alike, check_kept, tolerance_of
from ...attention.sites import QUERY_WEIGHTS, WEIGHT_SITES, HeadWeights, Site
from ...checks import Frozen, InputError, refusing
from ..exclusive import Hook
from ..recorder import Recorder
from .modules import removed_after

Rows = Int[Tensor, "head d_head"]  # the entries of what a map returns that each head takes
Layout = Callable[[Tensor, int, int], Tensor]  # those of all heads, of all entries, the number of a site and d_head
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_LARGE = 1024.0  # beside a weight times this, a bias is small, also in bfloat16


class LazyWeights(HeadWeights):
    """Weights whose `weight` is computed when an edit asks for it."""

    def __init__(self, weight: Tensor | Callable[[], Tensor], bias: Tensor | None, group: int = 1) -> None:
        vars(self).update({"make" if callable(weight) else "weight": weight}, bias=bias, group=group)

    @cached_property
    def weight(self) -> Tensor:
        return vars(self)["make"]()


class Linear(Frozen):
    """A linear map that ran: its input x, its output y, its weight `d_out d_in` when asked for, and its bias."""

    x: Tensor
    y: Tensor
    weight: Callable[[], Tensor]
    bias: Tensor | None


def linear_of(module: Any, x: Tensor, y: Tensor) -> Linear:
    """The map that a module computes, found by other inputs. So the format of its weight does not matter.

    Raises InputError for a module that is not linear: twice an input must give twice what is above the bias.
    """
    ones, first = (1,) * (x.ndim - 2), x.detach().flatten(0, -2)[0]
    bias, once, twice = module.forward(torch.stack((0 * first, first, 2 * first)).view(*ones, 3, -1)).flatten(0, -2)
    gap, what = Gap.of(twice.detach(), (2 * once - bias).detach()), f"a {type(module).__name__} is not linear"
    gap.check(tolerance_of(x.dtype), what, "edit the call of its layer instead")

    def weight() -> Tensor:
        each = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device).view(*ones, *(x.shape[-1],) * 2)
        return ((module.forward(each * _LARGE).flatten(0, -2) - bias) / _LARGE).T

    is_biased = isinstance(getattr(module, "bias", None), Tensor) or bool(bias.any())
    return Linear(x, y, weight, bias if is_biased else None)


class HeadMap(Frozen):
    """What makes the queries, keys or values of a layer, `site`. rows: of the width of what the map returns."""

    layer: int
    site: Site
    rows: Callable[[int], Rows]

    def edited(self, recorder: Recorder, shape: ModelShape, linear: Linear) -> Tensor:
        """What the map returns after the recorder's edits of its weights."""
        rows = self.rows(linear.y.shape[-1]).to(linear.y.device)
        if rows.shape != (shape.n_heads if self.site is QUERY_WEIGHTS else shape.n_kv_heads, shape.d_head):
            return linear.y  # and the recorder misses the map
        recorder.mapped.add((self.site, self.layer))
        with torch.set_grad_enabled(recorder.gradients):
            made = cache(lambda: linear.weight()[rows])
            bias = None if linear.bias is None else linear.bias[rows]
            before = LazyWeights(made, bias, shape.n_heads // len(rows))
            return _moved(linear, rows, before, self._weights(recorder, before))

    def _weights(self, recorder: Recorder, before: HeadWeights) -> HeadWeights:
        """The weights after the recorder's edits; `before` itself where they change nothing."""
        edited = before
        for edit in filter(self.site.touched_by, recorder.edits):
            who = self.site.name_of(edit)
            was_asked = "weight" in vars(edited)
            answer = Unchanged(edited).shown_to(partial(self.site.apply, edit), who, self.layer)
            check_kept(was_asked or "weight" not in vars(edited) or not edited.weight._version, who)
            _check(answer, edited, who)
            edited = answer
        return edited


def _moved(linear: Linear, rows: Rows, before: HeadWeights, after: HeadWeights) -> Tensor:
    """What a map returns with other weights in these rows."""
    x, y = linear.x, linear.y
    change: Tensor | None = None
    if after.bias is not before.bias and after.bias is not None and before.bias is not None:
        change = (after.bias - before.bias).flatten().expand(*y.shape[:-1], -1)
    if _weight_changes(before, after):
        moved = F.linear(x, (after.weight - before.weight).flatten(0, 1))
        change = moved if change is None else change + moved
    return y if change is None else y.index_add(-1, rows.flatten(), change.to(y.dtype))


def _weight_changes(before: HeadWeights, after: HeadWeights) -> bool:
    return "weight" in vars(after) and after.weight is not before.weight


@refusing
def _check(answer: Any, before: HeadWeights, who: str) -> Iterator[str]:
    """Raises InputError, which names the edit, where its answer cannot take the place of weights."""
    if not isinstance(answer, HeadWeights):
        yield f"{who} returned a {type(answer).__name__}; it must return HeadWeights"
    if _weight_changes(before, answer):
        alike(answer.weight, before.weight, f"{who}, in weight,")
    if (answer.bias is None) != (before.bias is None):
        yield f"{who} must return {'a' if answer.bias is None else 'no'} bias, as it was given"
    if answer.bias is not None and before.bias is not None:
        alike(answer.bias, before.bias, f"{who}, in bias,")


def alone(entries: Tensor, part: int, d_head: int) -> Tensor:
    """A map that makes queries, keys or values alone: `head d_head`."""
    return entries.unflatten(0, (-1, d_head))


def _stacked(entries: Tensor, part: int, d_head: int) -> Tensor:
    """GPT-2: `site head d_head`."""
    return entries.unflatten(0, (3, -1, d_head))[part]


def _interleaved(entries: Tensor, part: int, d_head: int) -> Tensor:
    """GPT-NeoX, Bloom: `head site d_head`."""
    return entries.unflatten(0, (-1, 3, d_head))[:, part]


_LAYOUTS: Sequence[tuple[tuple[str, str, str], Layout]] = (
    (("q_proj", "k_proj", "v_proj"), alone),
    (("q", "k", "v"), alone),
    (("c_attn",) * 3, _stacked),
    (("query_key_value",) * 3, _interleaved),
)


def rows_of(layout: Layout, part: int, d_head: int, width: int) -> Rows:
    """The rows of a layout; none where this width is not divided so."""
    is_whole = not width % (d_head if layout is alone else 3 * d_head)
    return layout(torch.arange(width if is_whole else 0), part, d_head)


def maps_of(blocks: Mapping[int, nn.Module], d_head: int) -> Iterator[tuple[nn.Module, HeadMap]]:
    """The modules that make queries, keys and values in these blocks, by layer, where they are known."""
    for layer, block in blocks.items():
        found = [_found(block, part) for part in range(len(WEIGHT_SITES))]
        for part, (module, layout) in enumerate(found):
            if module is not None and (layout is not alone or found.count((module, layout)) == 1):
                yield module, HeadMap(layer, WEIGHT_SITES[part], partial(rows_of, layout, part, d_head))


def _found(block: nn.Module, part: int) -> tuple[nn.Module | None, Layout]:
    """The module that makes a part of calls, and its layout. A `c_attn` of GPTBigCode has neither layout."""
    for parent in block.modules():
        for names, layout in _LAYOUTS:
            module = getattr(parent, names[part], None)
            if isinstance(module, nn.Module) and (layout is not _stacked or not hasattr(parent, "multi_query")):
                return module, layout
    return None, alone


@contextmanager
def maps_edited(
    blocks: Sequence[nn.Module], maps: Iterable[tuple[nn.Module, HeadMap]], shape: ModelShape, recorder: Recorder
) -> Iterator[None]:
    """In the block, maps return what the recorder's edits of weights make of them.

    A module that layers share is edited in those layers alone whose blocks run.
    """
    running = -1

    def enter(layer: int, block: nn.Module, args: Any) -> None:
        nonlocal running
        running = layer

    def after(head_map: HeadMap, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], y: Any) -> Any:
        if head_map.layer != running or not recorder.edits_at(head_map.site):
            return None
        return head_map.edited(recorder, shape, linear_of(module, (*args, *kwargs.values())[0], y))

    handles = [block.register_forward_pre_hook(Hook(recorder, partial(enter, i))) for i, block in enumerate(blocks)]
    for module, head_map in maps:
        edited = Hook(recorder, partial(after, head_map))
        handles.append(module.register_forward_hook(edited, prepend=True, with_kwargs=True))
    with removed_after(handles):
        yield


class LinearMap(Frozen):
    """A parameter of a module that is a linear map, or of experts a stack of them; transposed: columns are outputs."""

    module: nn.Module
    name: str
    is_transposed: bool

    @property
    def weight(self) -> Float[Tensor, "... row column"]:
        """A view of the weights: a row for each output, a column for each input.

        Raises InputError for weights that the module computes, or that are elsewhere between passes.
        """
        own, kind = self.module._parameters.get(self.name), type(self.module).__name__
        if own is None:
            raise InputError(f"the weights of a {kind} are computed, as under weight norm; remove the parametrisation")
        if own.is_meta:
            raise InputError(f"the weights of a {kind} are offloaded; load the model without device_map")
        return own.mT if self.is_transposed else own

    @contextmanager
    def replaced(self, weight: Float[Tensor, "... row column"]) -> Iterator[None]:
        """In the block, the module computes with these weights; its own are not written."""
        own = self.module._parameters[self.name]
        self.module._parameters[self.name] = nn.Parameter(weight.mT if self.is_transposed else weight, False)
        try:
            yield
        finally:
            self.module._parameters[self.name] = own


def is_stack(weight: Tensor) -> bool:
    """Tells if a parameter is a stack of matrices, as of experts."""
    return weight.ndim == 3 and min(weight.shape[1:]) > 1


def linear_maps(block: nn.Module) -> Iterator[LinearMap]:
    """The linear maps of a block.

    Weights that are integers are left out, as in a quantised model. So are routers of experts that transformers does
    not build as linear layers, and vectors, such as keys and values of a slot. Raises InputError as `LinearMap.weight`.
    """
    for module in block.modules():
        if isinstance(module, nn.Linear | Conv1D):
            found = [LinearMap(module, "weight", isinstance(module, Conv1D))]
        else:
            own = {} if isinstance(module, _CONVOLUTIONS) else dict(module.named_parameters(recurse=False))
            is_transposed = getattr(module, "is_transposed", False)  # transformers' experts
            found = [LinearMap(module, name, is_transposed) for name, weight in own.items() if is_stack(weight)]
        yield from (one for one in found if one.weight.is_floating_point())
