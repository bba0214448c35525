"""Slots that are added to the attention of a transformers model.

Each attention module gets a submodule `sink_slots`, which training finds among the parameters of the model. Nothing
else changes: caches, generation and masks are those of transformers.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import replace
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
from ..attention.slots import LogitPerHead, SinkLogit, SlotRow, Slots
from ..checks import InputError
from ..data.tokens import Tokens
from ..spec import Spec
from .attached import eval_mode, set_to
from .own_attention import mask_of_chosen

WITH_SLOTS = "sink_slots"  # the name of the attention implementation, and of the submodule
UNIT = 1000.0  # AdamW moves every number by the learning rate; slots need one that is so many times that of weights


class AddedSlots(Spec):
    """What is added to every head of a model. `replaces_bos`: whether texts need no BOS then."""

    replaces_bos: ClassVar[bool] = False

    def build(self, call: AttentionCall, position: int) -> Slots:
        """The slots of one attention module, by a call of it, and the position of the key whose place they take."""
        raise NotImplementedError


class AddedKeyValue(AddedSlots):
    """A key and a value per head (KV biases; Gu et al. 2025, section 7.1), which begin as the means at the position.

    Keys and values of a sink hardly depend on the text, so heads find all that they looked for in the slot, before any
    training. The same as a prefix in the cache that every text shares: arXiv:2406.12016, arXiv:2410.05265.
    """

    replaces_bos: ClassVar[bool] = True

    def build(self, call: AttentionCall, position: int) -> Slots:
        key, value = (_mean_at(position, x, call.q.shape[1]) for x in (call.k, call.v))
        return _Row(key, nn.Parameter(value))


class AddedKey(AddedSlots):
    """A key per head, which begins as the mean key at the position, with a value of zero (K biases)."""

    def build(self, call: AttentionCall, position: int) -> Slots:
        key = _mean_at(position, call.k, call.q.shape[1])
        return _Row(key, key.new_zeros(len(key), 1, call.v.shape[-1]))


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


def without_dropout(model: nn.Module) -> None:
    """Sets every dropout of a model to 0, under any name of its configuration."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    scaling: float | None = None, dropout: float = 0.0, **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """The attention function of transformers' interface."""
    if dropout:
        raise InputError("attention with added slots is computed without dropout; call model.eval(), or set it to 0")
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
