"""Slots that are added to the attention of a transformers model: an attention implementation that knows them.

Each attention module gets a submodule `sink_slots`, which training finds among the parameters of the model. Everything
else stays as it is: caches, generation and masks are those of transformers.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from ..attention.call import AttentionCall, call_of_interface, is_causal_call
from ..attention.shapes import HeadOutput, Keys, PerQuery, Values
from ..attention.slots import SinkLogit, SlotRow, Slots
from ..data.tokens import Tokens
from ..errors import InputError
from ..spec import Spec
from .anatomy.own_attention import mask_of_chosen

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
        return _KeyValue(*(_mean_at(position, x, call.q.shape[1]) for x in (call.k, call.v)))


@dataclass(frozen=True)
class AddedKey(AddedSlots):
    """A key per head, which begins as the mean key at the position, with a value of zero (K biases)."""

    def build(self, call: AttentionCall, position: int) -> Slots:
        return _Key(_mean_at(position, call.k, call.q.shape[1]), call.v.shape[-1])


@dataclass(frozen=True)
class AddedLogit(AddedSlots):
    """A score per head, the same for every query, with a value of zero (GPT-OSS). Minus infinity changes nothing.

    It begins at `first`; None: at the mean score of later queries with the key at the position.
    """

    first: float | None = None

    def build(self, call: AttentionCall, position: int) -> Slots:
        if self.first is not None:
            return _Logit(torch.full((call.q.shape[1],), self.first / UNIT))
        later, key = slice(position + 1, None), call.keys[position : position + 1]
        return _Logit(call.scores(key, later).mean((0, 2, 3)).to(call.q.dtype) / UNIT)


@dataclass(frozen=True)
class NoAddedSlots(AddedSlots):
    """Nothing: the control."""

    def build(self, call: AttentionCall, position: int) -> Slots:
        return Slots()


class _Logit(Slots):
    def __init__(self, logit: Tensor) -> None:
        super().__init__()
        self.logit = nn.Parameter(logit)

    def forward(self) -> SinkLogit:
        return SinkLogit(self.logit * UNIT)


class _Key(Slots):
    def __init__(self, key: Tensor, d_value: int) -> None:
        super().__init__()
        self.key, self.d_value = nn.Parameter(key / UNIT), d_value

    def forward(self) -> SlotRow:
        return SlotRow(self.key * UNIT, self.key.new_zeros(len(self.key), 1, self.d_value))


class _KeyValue(Slots):
    def __init__(self, key: Tensor, value: Tensor) -> None:
        super().__init__()
        self.key, self.value = nn.Parameter(key / UNIT), nn.Parameter(value)

    def forward(self) -> SlotRow:
        return SlotRow(self.key * UNIT, self.value)


def _mean_at(position: int, x: Keys | Values, n_heads: int) -> Float[Tensor, "head 1 d_head"]:
    """The mean over sequences of the keys or values at a position, once for every head."""
    return x[:, :, position : position + 1].mean(0).repeat_interleave(n_heads // x.shape[1], 0)


@dataclass
class Watch:
    """The attention that later queries give to one key, layer by layer, with its gradient."""

    key: int
    masses: list[Tensor] = field(default_factory=list)

    def mean(self) -> Tensor:
        """The mean over layers, heads, sequences and queries."""
        return torch.stack(self.masses).mean()


_WATCH: ContextVar[Watch | None] = ContextVar("sinkinterp_watch", default=None)
_FOUND: ContextVar[Callable[[nn.Module, AttentionCall], None] | None] = ContextVar("sinkinterp_found", default=None)


@contextmanager
def watched(key: int) -> Iterator[Watch]:
    """In the block, passes of models with slots note the attention to the key at this position."""
    watch = Watch(key)
    token = _WATCH.set(watch)
    try:
        yield watch
    finally:
        _WATCH.reset(token)


def slots_of(module: nn.Module) -> dict[str, SinkLogit | SlotRow]:
    """The slot of an attention module as an argument of `call_of_interface`; none where nothing was added."""
    added = getattr(module, WITH_SLOTS, None)
    slot = None if added is None else added()
    return {} if slot is None else {"slot": slot}


def replaces_bos(model: Any) -> bool:
    """Tells if slots of a model replace BOS, so that it reads texts without it."""
    return isinstance(model, nn.Module) and any(isinstance(module, _KeyValue) for module in model.modules())


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    scaling: float | None = None, dropout: float = 0.0, **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """The attention function of transformers' interface."""
    if dropout:
        raise InputError("attention with added slots is computed without dropout; set attention_dropout=0")
    attention_mask = mask_of_chosen(module, query, key.shape[2], attention_mask, kwargs)
    extra = {**kwargs, "is_causal": is_causal_call(module, kwargs), **slots_of(module)}
    call = call_of_interface(0, query, key, value, attention_mask, scaling, **extra)
    found, watch = _FOUND.get(), _WATCH.get()
    if found is not None:
        found(module, call)
    if watch is None:
        return call.output().transpose(1, 2).contiguous(), None
    z, mass = output_and_mass(call, watch.key)
    watch.masses.append(mass[:, :, watch.key + 1 :].mean())
    return z.transpose(1, 2).contiguous(), None


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
    if isinstance(slot, SlotRow):
        slot = SlotRow(F.pad(slot.key, (0, 1)), F.pad(slot.value, (0, 1)))
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

    def build(module: nn.Module, call: AttentionCall) -> None:
        if call.slot is not None:
            raise InputError(f"{name} has slots already, so none are added")
        slots[module] = spec.build(call, position).to(call.q.device, call.q.dtype)

    model.set_attn_implementation(WITH_SLOTS)
    try:
        _run(model, torch.tensor([[0, 1, 2]]) if tokens is None else tokens, build)
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


@torch.no_grad()
def _run(model: PreTrainedModel, tokens: Tokens, on_call: Callable[[nn.Module, AttentionCall], None]) -> None:
    """Runs a model on some tokens, and shows every attention module with its call; none is kept."""
    token, training = _FOUND.set(on_call), model.training
    try:
        model.eval()(tokens.to(model.device), use_cache=False)
    finally:
        _FOUND.reset(token)
        model.train(training)
