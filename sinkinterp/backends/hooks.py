"""How a transformers model shows a recorder what flows through it: attention implementations of ours, and hooks.

Nothing else changes: caches, generation and masks are those of transformers.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from ..attention.call import AttentionCall, call_of_interface, is_causal_call, unscaled
from ..attention.shapes import HeadOutput
from ..attention.sites import BLOCK_SITES, CALL, POSITION_EMBEDDING, RESIDUAL, TOKEN_EMBEDDING, Site
from . import own_attention
from .adapters import WITH_SLOTS, slots_of
from .anatomy import StreamModules, Tap, blocks_of, removed_after
from .attached import RECORDING, Hook
from .own_attention import mask_of_chosen
from .recorder import Recorder, Weighted, trimmed

Record = Callable[[Tensor], Tensor]  # shows what a module returns; its result replaces it
OURS = "sinkinterp_"  # before the name of an attention implementation of transformers that is recorded
BASES = ("sdpa", "eager", WITH_SLOTS)  # the attention implementations of transformers that can be recorded


def _recorded(base: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The attention function `base`, which also shows the calls of known modules to the recorder."""

    def attention(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
        dropout: float = 0.0, scaling: float | None = None, **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        kwargs["dropout"] = dropout  # kvpress, which wraps each function that is registered, gives it by its place
        eager = sys.modules[type(module).__module__].__dict__.get("eager_attention_forward")
        function = ALL_ATTENTION_FUNCTIONS.get_interface(base, eager)
        attention_mask = mask_of_chosen(module, key.shape[2], attention_mask, kwargs)
        of_transformers = partial(function, module, query, key, value, attention_mask, scaling=scaling, **kwargs)
        recorder = RECORDING.get()
        if recorder is None or module not in recorder.layers:
            return of_transformers()
        layer, extra = recorder.layers[module], {**kwargs, "scaling": scaling}
        call = shown_call(recorder, layer, module, (query, key, value), attention_mask, extra)
        drops = bool(kwargs.get("dropout"))
        is_exact = call.q is query and not drops and (base == "sdpa" or "kernel" in kwargs)

        def plain() -> Weighted:
            z, weights = of_transformers()
            return z.transpose(1, 2), weights

        z, weights = recorder.attended(call, plain, is_exact, shows_weights=base == "eager", drops=drops)
        if weights is not None:
            weights = F.pad(weights.to(query.dtype), (0, key.shape[2] - weights.shape[-1]))
        return z.transpose(1, 2).contiguous(), weights

    return attention


def shown_call(
    recorder: Recorder, layer: int, module: Any, qkv: Sequence[Tensor], mask: Tensor | None, extra: Mapping[str, Any]
) -> AttentionCall:
    """The call of a module that transformers' attention interface is given. extra: its keyword arguments."""
    extra = {**extra, "is_causal": is_causal_call(module, extra), "masks": recorder.masks, **slots_of(module)}
    k, v, mask, extra["position_bias"] = trimmed(recorder.layout, *qkv[1:], mask, extra.get("position_bias"))
    n = recorder.n_kv_heads  # fewer heads are repeated
    k, v = (x if x.shape[1] >= n else x.repeat_interleave(n // x.shape[1], 1) for x in (k, v))
    q, scale = unscaled(module, qkv[0], extra.get("scaling"))
    return call_of_interface(layer, q, k, v, mask, scale, **extra)


def _attended(
    layer: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, key_bias: Tensor | None = None
) -> HeadOutput:
    """What heads return in a model that does not use the attention interface; see `own_attention.Attend`."""
    recorder = RECORDING.get() or Recorder()
    k, v, mask, key_bias = trimmed(recorder.layout, k, v, mask, key_bias)
    call = call_of_interface(layer, q, k, v.to(q.dtype), mask, scale, key_bias=key_bias, masks=recorder.masks)
    return recorder.attended(call, lambda: (call.output(), None))[0].to(v.dtype)


for _base in BASES:
    AttentionInterface.register(OURS + _base, _recorded(_base))
    # without a mask function of the same name, transformers passes no mask and the model is no longer causal
    AttentionMaskInterface.register(OURS + _base, ALL_MASK_ATTENTION_FUNCTIONS[_base])


def _shown_input(
    record: Record, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns what a module is given, after `record`."""
    if args:
        return (record(args[0]), *args[1:]), kwargs
    return args, kwargs | {"hidden_states": record(kwargs["hidden_states"])}


def _shown_output(record: Record, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    """Returns what a module returns, after `record`."""
    return with_first(output, record)


def with_first(output: Any, record: Record) -> Any:
    """The output of a module, its first tensor after `record`; the very same object if that changes nothing."""
    has_others = isinstance(output, tuple | list)
    x = output[0] if has_others else output
    edited = record(x)
    if edited is x:
        return output
    return (edited, *output[1:]) if has_others else edited


Place = tuple[Site, nn.Module, Record, bool]


def places_of(modules: StreamModules, recorder: Recorder) -> Iterator[Place]:
    """The places that a recorder is shown, in forward order: site, module, what shows it, and if it is the input.

    The place of calls is the block itself, which shows nothing there.
    """
    residual = partial(_one_stream, recorder.residual, modules.stacks_streams)
    tables = {modules.embedding: TOKEN_EMBEDDING} | dict.fromkeys(modules.tables, POSITION_EMBEDDING)
    for table, site in tables.items():
        yield site, table, partial(recorder.edited, site), False
    for layer, block in enumerate(modules.blocks):
        yield RESIDUAL, block, residual, True
        for site in BLOCK_SITES[1:]:
            tap = modules.taps[site][layer] if site in modules.taps else None
            if site is CALL:
                yield CALL, block, lambda x: x, False
            elif tap is not None:
                yield from _places_of_tap(site, tap, partial(recorder.update, site, layer, factor=tap.factor))
    yield RESIDUAL, modules.blocks[-1], residual, False


def _places_of_tap(site: Site, tap: Tap, record: Record) -> list[Place]:
    """The modules whose inputs or outputs make up what is at a site."""
    if tap.beside is None:
        return [(site, tap.module, record, tap.is_input)]
    kept: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        kept[:] = [x]
        return x

    def record_sum(x: Tensor) -> Tensor:
        total = x + kept[0]
        edited = record(total)
        return x if edited is total else edited - kept[0]

    return [(site, tap.beside, keep, False), (site, tap.module, record_sum, False)]


def recorded_stream(
    modules: StreamModules, recorder: Recorder, comes_first: bool = False
) -> AbstractContextManager[None]:
    """Here, its own passes show the recorder embeddings, residuals and what is at the taps, and it replaces them.

    comes_first: whether the recorder comes before hooks of other libraries; by default it comes after them.
    """
    handles = []
    for site, module, record, is_input in places_of(modules, recorder):
        hook = Hook(recorder, partial(_shown_input if is_input else _shown_output, record))
        if is_input:
            handles.append(module.register_forward_pre_hook(hook, prepend=comes_first, with_kwargs=True))
        elif site is not CALL:
            handles.append(module.register_forward_hook(hook, prepend=comes_first))
    return removed_after(handles)


def _one_stream(record: Record, stacked: bool, x: Tensor) -> Tensor:
    """What blocks pass on after `record`, which is shown several streams side by side: `batch pos (stream d)`.

    x: `batch pos d_model`, or `batch pos stream d`, or `stream batch pos d` with `stacked`.
    """
    if x.ndim != 4:
        return record(x)
    streams = x.movedim(0, 2) if stacked else x
    shown = streams.flatten(2)
    edited = record(shown)
    if edited is shown:
        return x
    apart = edited.view_as(streams)
    return apart.movedim(2, 0) if stacked else apart


@contextmanager
def attention_set_to(model: PreTrainedModel, implementation: str) -> Iterator[None]:
    """In the block, the model has another attention implementation.

    Modules outside transformers' attention interface show their calls to the recorder instead; see `own_attention`.
    """
    parts = (model, model.get_decoder())  # GOT-OCR: its decoder alone can
    can_set = next((p for p in parts if isinstance(p, PreTrainedModel) and p._can_set_attn_implementation()), None)
    with ExitStack() as stack:
        if own_attention.is_known(model):
            stack.enter_context(own_attention.replaced(blocks_of(model), _attended))
        if can_set is not None:
            before = can_set.config._attn_implementation
            stack.callback(can_set.set_attn_implementation, before)
            can_set.set_attn_implementation(implementation)
        yield
