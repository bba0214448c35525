"""Interventions on slots: the learned k*, v* of K biases, learned sink logits, and softmax-off-by-one."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from typing_extensions import override

from ..attention.call import AttentionCall
from ..attention.slots import SinkLogit, SlotRow
from ..errors import InputError
from .selectors import InLayers, OnHeads


@dataclass(frozen=True)
class RemoveKeySlot(InLayers):
    """Layers attend to tokens only: no k*, no sink logit."""

    @override
    def call(self, call: AttentionCall) -> AttentionCall:
        if not self.acts_in(call.layer):
            return call
        _slot_of(call)
        return replace(call, slot=None)


@dataclass(frozen=True)
class ZeroKeySlot(OnHeads):
    """k* = 0, or a sink logit of 0: with v* = 0 that is softmax-off-by-one."""

    @override
    def call(self, call: AttentionCall) -> AttentionCall:
        if not self.acts_in(call.layer):
            return call
        slot, heads = _slot_of(call), self.head_mask(call.layer, call.q.shape[1], call.q.shape[1])
        return replace(call, slot=_without_key(slot, heads.to(call.q.device)))


@dataclass(frozen=True)
class AddSinkLogit(InLayers):
    """A column of value zero and score `logit`; 0 is softmax-off-by-one. Raises InputError where there is a slot."""

    logit: float = 0.0

    @override
    def call(self, call: AttentionCall) -> AttentionCall:
        if not self.acts_in(call.layer):
            return call
        if call.slot is not None:
            raise InputError(f"layer {call.layer} has a slot already; use ZeroKeySlot or RemoveKeySlot")
        logits = torch.full((call.q.shape[1],), self.logit, device=call.q.device)
        return replace(call, slot=SinkLogit(logits))


def _slot_of(call: AttentionCall) -> SlotRow | SinkLogit:
    if call.slot is None:
        raise InputError(f"layer {call.layer} has no slot to change; take a model with K biases or sink logits")
    return call.slot


def _without_key(slot: SlotRow | SinkLogit, heads: Tensor) -> SlotRow | SinkLogit:
    if isinstance(slot, SinkLogit):
        return SinkLogit(slot.logit.masked_fill(heads, 0))
    return SlotRow(slot.key.masked_fill(heads[:, None, None], 0), slot.value)
