"""How a transformers model shows a recorder its attention calls and its residual stream. Nothing is patched."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import get_ident
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from ..attention.call import AttentionCall, call_of_interface, is_causal_call
from ..attention.relative import as_tensor
from ..attention.shapes import HeadOutput
from ..attention.sites import POSITION_EMBEDDING, TOKEN_EMBEDDING
from ..checks import InputError
from .added_slots import WITH_SLOTS, slots_of
from .anatomy import own_attention
from .anatomy.modules import StreamModules, Tap, blocks_of, removed_after
from .anatomy.own_attention import mask_of_chosen, summaries_apart
from .exclusive import RECORDING, Attached, Hook, lock_of, raise_if_interrupted
from .layout import trimmed
from .recorder import Recorder

Record = Callable[[Tensor], Tensor]  # shows what a module returns; its result replaces it
OURS = "sinkinterp_"  # before the name of an attention implementation of transformers that is recorded
BASES = ("sdpa", "eager", WITH_SLOTS)  # the attention implementations of transformers that can be recorded


def _recorded(base: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The attention function `base`, which also shows the calls of known modules to the recorder."""

    def attention(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
        scaling: float | None = None, **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        eager = sys.modules[type(module).__module__].__dict__.get("eager_attention_forward")
        function = ALL_ATTENTION_FUNCTIONS.get_interface(base, eager)
        attention_mask = mask_of_chosen(module, query, key.shape[2], attention_mask, kwargs)
        of_transformers = partial(function, module, query, key, value, attention_mask, scaling=scaling, **kwargs)
        recording = RECORDING.get()
        if recording is None or module not in recording.layers:
            return of_transformers()
        layer = recording.layers[module]
        extra = {**kwargs, "is_causal": is_causal_call(module, kwargs), **slots_of(module)}
        tensors = trimmed(recording.recorder.layout, key, value, attention_mask, as_tensor(kwargs.get("position_bias")))
        extra |= {} if tensors[3] is None else {"position_bias": tensors[3]}
        k, v = (with_heads(x, recording.n_kv_heads) for x in tensors[:2])
        call = call_of_interface(layer, query, k, v, tensors[2], scaling, **extra)
        call = summaries_apart(module, call, recording.recorder.layout is None)
        parts, drops = recording.recorder.parts(call), bool(kwargs.get("dropout"))
        edited = call if parts is not None else recording.recorder.attend(call)
        if (edited is not call or parts is not None) and drops:
            raise InputError("edits of attention compute it without dropout; call model.eval(), or set it to 0")
        if parts is not None:
            weights = None if base != "eager" else F.pad(parts.weights(), (0, key.shape[2] - call.k.shape[2]))
            return parts.output().transpose(1, 2).contiguous(), weights
        if edited is not call or (not drops and edited.is_fused and (base == "sdpa" or "kernel" in kwargs)):
            z, weights = edited.output(), _weights(edited) if base == "eager" else None
        else:
            z, weights = of_transformers()
            z = z.transpose(1, 2)
        return recording.recorder.output(edited, z).transpose(1, 2).contiguous(), weights

    return attention


def with_heads(x: Tensor, n_kv_heads: int) -> Tensor:
    """Keys or values, each head as often as makes so many, in the same order; as they are where that is fewer."""
    return x if x.shape[1] >= n_kv_heads else x.repeat_interleave(n_kv_heads // x.shape[1], 1)


def _weights(call: AttentionCall) -> Tensor:
    """What eager attention returns beside its output: the pattern without the slot's column."""
    return call.pattern()[..., -call.k.shape[2] :].to(call.q.dtype)


def _attended(
    layer: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, key_bias: Tensor | None = None
) -> HeadOutput:
    """What heads return in a model that does not use the attention interface; see `own_attention.Attend`."""
    recording = RECORDING.get()
    if recording is None:
        return call_of_interface(layer, q, k, v.to(q.dtype), mask, scale, key_bias=key_bias).output().to(v.dtype)
    k, v, mask, key_bias = trimmed(recording.recorder.layout, k, v, mask, key_bias)
    call = call_of_interface(layer, q, k, v.to(q.dtype), mask, scale, key_bias=key_bias)
    parts = recording.recorder.parts(call)
    if parts is not None:
        return parts.output().to(v.dtype)
    edited = recording.recorder.attend(call)
    return recording.recorder.output(edited, edited.output()).to(v.dtype)


for _base in BASES:
    AttentionInterface.register(OURS + _base, _recorded(_base))
    # without a mask function of the same name, transformers passes no mask and the model is no longer causal
    AttentionMaskInterface.register(OURS + _base, ALL_MASK_ATTENTION_FUNCTIONS[_base])


def _shown_input(
    record: Record, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns what a module is given, after `record`."""
    raise_if_interrupted()
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


@contextmanager
def recorded_stream(modules: StreamModules, recorder: Recorder, comes_first: bool = False) -> Iterator[None]:
    """Here, its own passes show the recorder embeddings, residuals and what is at the taps, and it replaces them.

    comes_first: whether the recorder comes before hooks of other libraries; by default it comes after them.
    """
    residual = partial(_one_stream, recorder.residual, modules.stacks_streams)
    inputs: list[tuple[nn.Module, Record]] = [(block, residual) for block in modules.blocks]
    outputs: list[tuple[nn.Module, Record]] = [
        (modules.embedding, partial(recorder.edited, TOKEN_EMBEDDING)),
        (modules.blocks[-1], residual),
    ]
    outputs += [(table, partial(recorder.edited, POSITION_EMBEDDING)) for table in modules.tables]
    for site, taps in modules.taps.items():
        for block, tap in enumerate(taps):
            if tap is not None:
                record = partial(recorder.update, site, block, factor=tap.factor)
                inputs += [(tap.module, record)] if tap.is_input else []
                outputs += [] if tap.is_input else _recorded_update(tap, record)
    handles = []
    for module, shown in inputs:
        before = Hook(recorder, partial(_shown_input, shown))
        handles.append(module.register_forward_pre_hook(before, prepend=comes_first, with_kwargs=True))
    for module, shown in outputs:
        after = Hook(recorder, partial(_shown_output, shown))
        handles.append(module.register_forward_hook(after, prepend=comes_first))
    with removed_after(handles):
        yield


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


def _recorded_update(tap: Tap, record: Record) -> list[tuple[nn.Module, Record]]:
    """The modules whose outputs make up what is at a site, and what shows them to `record`."""
    if tap.beside is None:
        return [(tap.module, record)]
    kept: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        kept[:] = [x]
        return x

    return [(tap.beside, keep), (tap.module, lambda x: recorded_sum(record, kept[0], x))]


def recorded_sum(record: Record, other: Tensor, x: Tensor) -> Tensor:
    """Returns what takes the place of `x`, where `record` is shown the sum of both."""
    total = x + other
    edited = record(total)
    return x if edited is total else edited - other


@contextmanager
def attention_set_to(model: PreTrainedModel, implementation: str | None) -> Iterator[None]:
    """In the block, the model has another attention implementation; None leaves its own.

    Modules outside transformers' attention interface show their calls to the recorder instead; see `own_attention`.
    """
    if implementation is None:
        yield
        return
    parts = (model, model.get_decoder())  # GOT-OCR: its decoder alone can
    can_set = next((p for p in parts if isinstance(p, PreTrainedModel) and p._can_set_attn_implementation()), None)
    with ExitStack() as stack:
        if own_attention.is_known(model):
            stack.enter_context(own_attention.replaced(blocks_of(model), _attended))
        if can_set is not None:
            stack.enter_context(_configured(can_set, implementation))
        yield


@contextmanager
def _configured(model: PreTrainedModel, implementation: str) -> Iterator[None]:
    """Sets the attention in the model's configuration. Models may share it, so this may end before what came later."""
    lock, key, here = lock_of(type(model.config)), id(model.config), _Setting()
    with lock:
        here.before = model.config._attn_implementation
        _SETTINGS.setdefault(key, []).append(here)
    try:
        model.set_attn_implementation(implementation)
        yield
    finally:
        with lock:
            later = _SETTINGS[key][_SETTINGS[key].index(here) + 1 :]
            _SETTINGS[key].remove(here)
            if later:
                later[0].before = here.before
            elif model.config._attn_implementation != here.before:
                model.set_attn_implementation(here.before)
            if not _SETTINGS[key]:
                del _SETTINGS[key]


@dataclass(eq=False)
class _Setting:
    """The attention implementation that a configuration had before it was set."""

    before: str | None = None


_SETTINGS: dict[int, list[_Setting]] = {}  # those of each configuration that have not ended, by its id


def inside_compiled(model: Any) -> Any:
    """The model that `torch.compile` wrapped; any other as it is. Raises InputError for a proxy of one."""
    kinds = (nn.Module, str)
    if isinstance(model, kinds) and not issubclass(type(model), kinds):
        raise InputError(f"a {type(model).__name__} stands for another object; give that object itself")
    return inside_compiled(model._orig_mod) if _is_wrapped(model) else model


def _is_wrapped(model: Any) -> bool:
    return isinstance(model, nn.Module) and "_orig_mod" in model._modules  # importing its class takes seconds


@contextmanager
def uncompiled(model: nn.Module) -> Iterator[None]:
    """Here, modules that are compiled, in place or by `torch.compile`, run as they are written, so hooks are seen."""
    parts: list[Any] = [*model.modules()]
    in_place = {part: part._compiled_call_impl for part in parts if part._compiled_call_impl is not None}
    wrapped = {part: part.forward for part in parts if _is_wrapped(part)}
    try:
        for part in in_place:
            part._compiled_call_impl = None
        for part in wrapped:
            part.forward = part._orig_mod.__call__
        yield
    finally:
        for part, call in in_place.items():
            part._compiled_call_impl = call
        for part, forward in wrapped.items():
            part.forward = forward


@dataclass(eq=False)
class _Wait(Attached):
    """A hook of all modules of a model that makes other threads wait until the model is measured."""

    model: nn.Module
    thread: int = field(default_factory=get_ident)
    has_waited: bool = False

    def __call__(self, *args: Any) -> None:
        if get_ident() != self.thread:
            self.has_waited = True
            with lock_of(self.model):
                pass


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Here, the model has no dropout, is not compiled, and computes in its own dtype. Afterwards all is as it was.

    Raises InputError at the end where the model was training, and another thread ran it meanwhile.
    """
    training, wait = [module for module in model.modules() if module.training], _Wait(model)
    waits = removed_after([module.register_forward_pre_hook(wait, prepend=True) for module in training])
    try:
        with waits, uncompiled(model), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            model.eval()
            yield
    finally:
        for module in training:
            module.training = True
    if wait.has_waited:
        raise InputError(f"another thread runs this {type(model).__name__} in training; measure it between its passes")
