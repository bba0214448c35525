"""Our attention implementations: how a transformers model shows a recorder its calls, and slots that are added to it.

A recorder is also shown the residual stream, by hooks. Nothing is patched. For slots, each attention module gets a
submodule `sink_slots`, which training finds among the parameters of the model. Everything else stays as it is: caches,
generation and masks are those of transformers.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from threading import get_ident
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from ..attention.call import AttentionCall, call_of_interface, is_causal_call
from ..attention.shapes import HeadOutput, Keys, PerQuery, Values
from ..attention.sites import BLOCK_SITES, CALL, POSITION_EMBEDDING, RESIDUAL, TOKEN_EMBEDDING, Site
from ..attention.slots import LogitPerHead, SinkLogit, SlotRow, Slots
from ..checks import InputError
from ..data.tokens import Tokens
from ..spec import Spec
from .anatomy import own_attention
from .anatomy.modules import StreamModules, Tap, blocks_of, removed_after
from .anatomy.own_attention import mask_of_chosen
from .exclusive import RECORDING, Attached, Hook, computed_by, lock_of, raise_if_interrupted, set_to
from .recorder import Recorder, trimmed

WITH_SLOTS = "sink_slots"  # the name of the attention implementation, and of the submodule
UNIT = 1000.0  # AdamW moves every number by the learning rate; slots need one that is so many times that of weights


@dataclass(frozen=True)
class AddedSlots(Spec):
    """What is added to every head of a model. `replaces_bos`: whether texts need no BOS then."""

    replaces_bos: ClassVar[bool] = False

    def build(self, call: AttentionCall, position: int) -> Slots:
        """The slots of one attention module, by a call of it, and the position of the key whose place they take."""
        raise NotImplementedError


@dataclass(frozen=True)
class AddedKeyValue(AddedSlots):
    """A key and a value per head (KV biases; Gu et al. 2025, section 7.1), which begin as the means at the position.

    Keys and values of a sink hardly depend on the text, so heads find all that they looked for in the slot, before any
    training. The same as a prefix in the cache that every text shares: arXiv:2406.12016, arXiv:2410.05265.
    """

    replaces_bos: ClassVar[bool] = True

    def build(self, call: AttentionCall, position: int) -> Slots:
        key, value = (_mean_at(position, x, call.q.shape[1]) for x in (call.k, call.v))
        return _Row(key, nn.Parameter(value))


@dataclass(frozen=True)
class AddedKey(AddedSlots):
    """A key per head, which begins as the mean key at the position, with a value of zero (K biases)."""

    def build(self, call: AttentionCall, position: int) -> Slots:
        key = _mean_at(position, call.k, call.q.shape[1])
        return _Row(key, key.new_zeros(len(key), 1, call.v.shape[-1]))


@dataclass(frozen=True)
class AddedLogit(AddedSlots):
    """A score per head, the same for every query, with a value of zero (GPT-OSS). Minus infinity changes nothing.

    It begins at `first`; None: at the mean score of later queries with the key at the position.
    """

    first: float | None = None

    def build(self, call: AttentionCall, position: int) -> Slots:
        if self.first is not None:
            return LogitPerHead(torch.full((call.q.shape[1],), self.first / UNIT), UNIT)
        later, key = slice(position + 1, None), call.keys[position : position + 1]
        return LogitPerHead(call.scores(key, later).mean((0, 2, 3)).to(call.q.dtype) / UNIT, UNIT)


@dataclass(frozen=True)
class NoAddedSlots(AddedSlots):
    """Nothing: the control."""

    def build(self, call: AttentionCall, position: int) -> Slots:
        return Slots()


class _Row(Slots):
    """A key per head that is trained, and a value that is trained if it is a parameter."""

    def __init__(self, key: Tensor, value: Tensor) -> None:
        super().__init__()
        self.key = nn.Parameter(key / UNIT)
        self.value = nn.Buffer(value, persistent=False) if not isinstance(value, nn.Parameter) else value

    def forward(self) -> SlotRow:
        return SlotRow(self.key * UNIT, self.value)


def _mean_at(position: int, x: Keys | Values, n_heads: int) -> Float[Tensor, "head 1 d_head"]:
    """The mean over sequences of the keys or values at a position, once for every head."""
    return x[:, :, position : position + 1].mean(0).repeat_interleave(n_heads // x.shape[1], 0)


Answer = Callable[[nn.Module, AttentionCall], HeadOutput]
# what attention modules return for their calls
_ANSWER: ContextVar[Answer] = ContextVar("sinkinterp_answer", default=lambda module, call: call.output())


def watched(key: int) -> AbstractContextManager[list[Tensor]]:
    """Yields a list of the mean attention that later queries give to one key, layer by layer, with its gradient."""
    masses: list[Tensor] = []

    def answer(module: nn.Module, call: AttentionCall) -> HeadOutput:
        z, mass = output_and_mass(call, key)
        masses.append(mass[:, :, key + 1 :].mean())
        return z

    return set_to(_ANSWER, answer, masses)


def slots_of(module: nn.Module) -> dict[str, SinkLogit | SlotRow]:
    """The slot of an attention module as an argument of `call_of_interface`; none where nothing was added."""
    added = getattr(module, WITH_SLOTS, None)
    slot = None if added is None else added()
    return {} if slot is None else {"slot": slot}


def replaces_bos(model: Any) -> bool:
    """Tells if slots of a model replace BOS, so that it reads texts without it."""
    rows = (module for module in model.modules() if isinstance(module, _Row)) if isinstance(model, nn.Module) else ()
    return any(isinstance(row.value, nn.Parameter) for row in rows)


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    scaling: float | None = None, dropout: float = 0.0, **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """The attention function of transformers' interface."""
    if dropout:
        raise InputError("attention with added slots is computed without dropout; set attention_dropout=0")
    attention_mask = mask_of_chosen(module, key.shape[2], attention_mask, kwargs)
    extra = {**kwargs, "is_causal": is_causal_call(module, kwargs), **slots_of(module)}
    call = call_of_interface(0, query, key, value, attention_mask, scaling, **extra)
    return _ANSWER.get()(module, call).transpose(1, 2).contiguous(), None


AttentionInterface.register(WITH_SLOTS, _attend)
AttentionMaskInterface.register(WITH_SLOTS, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


def output_and_mass(call: AttentionCall, key: int) -> tuple[HeadOutput, PerQuery]:
    """Returns what the heads return, and every query's attention to one key, by one pass of the kernel, with gradients.

    The values get one number more, which is 1 at the key and 0 elsewhere. What heads return there is their attention.
    """
    marked = F.pad(call.v, (0, 1))
    marked[:, :, key, -1] = 1.0
    q, k = (F.pad(x, (0, 1)) for x in (call.q, call.k))
    slot = call.slot
    slot = SlotRow(F.pad(slot.key, (0, 1)), F.pad(slot.value, (0, 1))) if isinstance(slot, SlotRow) else slot
    z = replace(call, q=q, k=k, v=marked, slot=slot).output()
    return z[..., :-1], z[..., -1]


def add_slots(model: PreTrainedModel, spec: AddedSlots, tokens: Tokens | None = None, position: int = 0) -> str:
    """Adds slots to every attention of a model, and sets its attention implementation. Returns the one that it had.

    They begin as the spec says for the calls on some tokens, by default three ids. Raises InputError for a model with
    slots, an encoder or an attention outside transformers' interface.
    """
    name = type(model).__name__
    if model.config.is_encoder_decoder or not model._can_set_attn_implementation():
        raise InputError(f"slots are added to causal models with transformers' attention interface; {name} is not one")
    before: str = model.config._attn_implementation
    slots: dict[nn.Module, Slots] = {}

    def build(module: nn.Module, call: AttentionCall) -> HeadOutput:
        if call.slot is not None:
            raise InputError(f"{name} has slots already, so none are added")
        slots[module] = spec.build(call, position).to(call.q.device, call.q.dtype)
        return call.output()

    model.set_attn_implementation(WITH_SLOTS)
    try:
        with torch.no_grad(), eval_mode(model), set_to(_ANSWER, build):
            ids = torch.tensor([[0, 1, 2]]) if tokens is None else tokens
            model(ids.to(model.device), use_cache=False)
        if not slots:
            raise InputError(f"{name} calls no attention, so none are added")
    except BaseException:
        model.set_attn_implementation(before)
        raise
    for module, added in slots.items():
        module.add_module(WITH_SLOTS, added)
    return before


def remove_slots(model: PreTrainedModel, before: str) -> None:
    """Takes the slots off again; `before` is what `add_slots` returned."""
    for module in model.modules():
        if hasattr(module, WITH_SLOTS):
            delattr(module, WITH_SLOTS)
    model.set_attn_implementation(before)


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
        attention_mask = mask_of_chosen(module, key.shape[2], attention_mask, kwargs)
        of_transformers = partial(function, module, query, key, value, attention_mask, scaling=scaling, **kwargs)
        recorder = RECORDING.get()
        if recorder is None or module not in recorder.layers:
            return of_transformers()
        extra = {**kwargs, "is_causal": is_causal_call(module, kwargs), **slots_of(module)}
        extra["masks"] = recorder.masks
        tensors = trimmed(recorder.layout, key, value, attention_mask, kwargs.get("position_bias"))
        extra |= {} if tensors[3] is None else {"position_bias": tensors[3]}
        k, v = (with_heads(x, recorder.n_kv_heads) for x in tensors[:2])
        call = call_of_interface(recorder.layers[module], query, k, v, tensors[2], scaling, **extra)
        edited, drops = recorder.edited_call(call), bool(kwargs.get("dropout"))
        if edited is not call and drops:
            raise InputError("edits of attention compute it without dropout; call model.eval(), or set it to 0")
        if edited is not call or (not drops and call.is_fused and (base == "sdpa" or "kernel" in kwargs)):
            z, weights = edited.output(), None
            if base == "eager":  # which returns the pattern without the slot's column
                weights = edited.pattern()[..., -call.k.shape[2] :].to(query.dtype)
                weights = F.pad(weights, (0, key.shape[2] - call.k.shape[2]))
        else:
            z, weights = of_transformers()
            z = z.transpose(1, 2)
        return recorder.output(edited, z).transpose(1, 2).contiguous(), weights

    return attention


def with_heads(x: Tensor, n_kv_heads: int) -> Tensor:
    """Keys or values, each head as often as makes so many, in the same order; as they are where that is fewer."""
    return x if x.shape[1] >= n_kv_heads else x.repeat_interleave(n_kv_heads // x.shape[1], 1)


def _attended(
    layer: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, key_bias: Tensor | None = None
) -> HeadOutput:
    """What heads return in a model that does not use the attention interface; see `own_attention.Attend`."""
    recorder = RECORDING.get()
    k, v, mask, key_bias = trimmed(None if recorder is None else recorder.layout, k, v, mask, key_bias)
    masks = None if recorder is None else recorder.masks
    call = call_of_interface(layer, q, k, v.to(q.dtype), mask, scale, key_bias=key_bias, masks=masks)
    if recorder is None:
        return call.output().to(v.dtype)
    edited = recorder.edited_call(call)
    return recorder.output(edited, edited.output()).to(v.dtype)


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
            stack.enter_context(_configured(can_set, implementation))
        yield


@contextmanager
def _configured(model: PreTrainedModel, implementation: str) -> Iterator[None]:
    """Sets the attention in the model's configuration. Models may share it, so this may end before what came later."""
    lock, key, here = lock_of(type(model.config)), id(model.config), object()
    with lock:
        _SET.setdefault(key, {None: model.config._attn_implementation})[here] = implementation
    try:
        model.set_attn_implementation(implementation)
        yield
    finally:
        with lock:
            del _SET[key][here]
            *others, last = _SET[key].values()
            if model.config._attn_implementation != last:
                model.set_attn_implementation(last)
            if not others:
                del _SET[key]


_SET: dict[int, dict[object, str]] = {}  # by a configuration's id: its implementation, and those that blocks have set


def inside_compiled(model: Any) -> Any:
    """The model that `torch.compile` wrapped; any other as it is. Raises InputError for a proxy of one."""
    kinds = (nn.Module, str)
    if isinstance(model, kinds) and not issubclass(type(model), kinds):
        raise InputError(f"a {type(model).__name__} stands for another object; give that object itself")
    return inside_compiled(model._orig_mod) if _is_wrapped(model) else model


def _is_wrapped(model: Any) -> bool:
    return isinstance(model, nn.Module) and "_orig_mod" in model._modules  # importing its class takes seconds


@contextmanager
def uncompiled(parts: Sequence[Any]) -> Iterator[None]:
    """Here, modules that are compiled, in place or by `torch.compile`, run as they are written, so hooks are seen."""
    in_place = {part: None for part in parts if part._compiled_call_impl is not None}
    wrapped = {part: part._orig_mod.__call__ for part in parts if _is_wrapped(part)}
    with computed_by(in_place, "_compiled_call_impl"), computed_by(wrapped):
        yield


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
    parts, wait = [*model.modules()], _Wait(model)
    training = [part for part in parts if part.training]
    waits = removed_after([module.register_forward_pre_hook(wait, prepend=True) for module in training])
    try:
        with waits, uncompiled(parts), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            if training:
                model.eval()
            yield
    finally:
        for module in training:
            module.training = True
    if wait.has_waited:
        raise InputError(f"another thread runs this {type(model).__name__} in training; measure it between its passes")
