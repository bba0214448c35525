"""Slots of a call, taken away, zeroed and added, against softmax written out."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from refusals import refused

import sinkinterp as si
from sinkinterp.attention.slots import SinkLogit, SlotRow
from sinkinterp.backends.load import load
from sinkinterp.interventions import AddSinkLogit, RemoveColumn, RemoveKeySlot, ZeroKeySlot
from sinkinterp.lm.model import build

LAYER = 3


def exps(call):
    k = call.k.repeat_interleave(2, 1)
    causal = torch.ones(11, 11).tril().bool()
    return (torch.einsum("bhid,bhjd->bhij", call.q, k) * call.scale).exp() * causal


def key_slot(value=0.0):
    return SlotRow(torch.randn(6, 1, 5), torch.full((6, 1, 5), value))


SLOTS = {"sink logit": lambda: SinkLogit(torch.randn(6)), "key slot": key_slot}
every_slot = pytest.mark.parametrize("slot", SLOTS.values(), ids=SLOTS)


@every_slot
def test_a_zeroed_slot_adds_one_to_the_sum_of_exponentials(slot, make_call):
    call = make_call(slot=slot())
    one = torch.ones(2, 6, 11, 1)
    by_hand = torch.cat((one, exps(call)), -1) / (exps(call).sum(-1, keepdim=True) + 1)
    zeroed = ZeroKeySlot().call(call)
    torch.testing.assert_close(zeroed.pattern(), by_hand)
    torch.testing.assert_close(zeroed.output(), by_hand[..., 1:] @ call.v.repeat_interleave(2, 1))
    torch.testing.assert_close(zeroed.slot_mass(), by_hand[..., 0].sum(2))


def test_softmax_off_by_one_has_three_names(make_call):
    call = make_call(slot=key_slot())
    zeroed, added = ZeroKeySlot().call(call), AddSinkLogit(0.0).call(RemoveKeySlot().call(call))
    of_logit = ZeroKeySlot().call(replace(call, slot=SinkLogit(torch.randn(6))))
    for other in (added, of_logit):
        torch.testing.assert_close(zeroed.pattern(), other.pattern())
        torch.testing.assert_close(zeroed.output(), other.output())
        torch.testing.assert_close(zeroed.log_normaliser(), other.log_normaliser())


def test_an_added_logit_has_its_exponential_as_weight(make_call):
    call = make_call()
    by_hand = exps(call) / (exps(call).sum(-1, keepdim=True) + torch.tensor(1.5).exp())
    torch.testing.assert_close(AddSinkLogit(1.5).call(call).pattern()[..., 1:], by_hand)
    some = AddSinkLogit(1.5, heads=[(call.layer, 4)]).call(call).pattern()
    assert some[:, :4, :, 0].eq(0).all() and some[:, 5:, :, 0].eq(0).all()
    torch.testing.assert_close(some[:, 4, :, 1:], by_hand[:, 4])
    torch.testing.assert_close(some[:, :4, :, 1:], call.pattern()[:, :4])


@every_slot
def test_without_its_slot_attention_is_plain_softmax(slot, make_call):
    plain = make_call()
    without = RemoveKeySlot().call(replace(plain, slot=slot()))
    torch.testing.assert_close(without.output(), plain.output())
    torch.testing.assert_close(without.pattern(), exps(plain) / exps(plain).sum(-1, keepdim=True))


def test_a_key_is_zeroed_in_the_named_heads_and_values_stay(make_call):
    call = make_call(slot=key_slot(value=2.0))
    zeroed = ZeroKeySlot(heads=[(LAYER, 2), (LAYER, 5), (0, 1)]).call(call)
    assert zeroed.slot.key[[2, 5]].eq(0).all() and zeroed.slot.key[[0, 1, 3, 4]].equal(call.slot.key[[0, 1, 3, 4]])
    assert zeroed.slot.value.equal(call.slot.value)
    logits = ZeroKeySlot(heads=[(LAYER, 0)]).call(replace(call, slot=SinkLogit(torch.ones(6)))).slot.logit
    assert logits.tolist() == [0, 1, 1, 1, 1, 1]


def test_layers_without_a_slot_or_with_one_refuse_in_one_line(make_call):
    plain, slotted = make_call(), make_call(slot=SinkLogit(torch.zeros(6)))
    behind, behind_slotted = RemoveColumn().call(plain), RemoveColumn().call(slotted)
    unfit = [(ZeroKeySlot(), plain), (RemoveKeySlot(), plain), (AddSinkLogit(), slotted), (AddSinkLogit(), behind)]
    for edit, call in (*unfit, (ZeroKeySlot(), behind_slotted), (RemoveKeySlot(), behind_slotted)):
        refused(partial(edit.call, call), "layer 3")
    for edit in (ZeroKeySlot(layers=[2]), RemoveKeySlot(layers=[2]), ZeroKeySlot(heads=[(2, 0)])):
        assert edit.call(plain) is plain
    assert AddSinkLogit(layers=[2]).call(slotted) is slotted


def test_a_model_with_k_biases_becomes_softmax_off_by_one():
    spec = replace(si.VARIANTS["k_bias"], vocab=97, d_model=42, n_heads=3, n_layers=2, n_ctx=19)
    model = build(spec)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(20 if "slots.key" in name else 1)
    plain = build(replace(spec, attention=replace(spec.attention, slots=si.VARIANTS["softmax"].attention.slots)))
    missing = plain.load_state_dict(model.state_dict(), strict=False)
    assert not missing.missing_keys and all("slots" in key for key in missing.unexpected_keys)
    tokens = torch.randint(97, (3, 13))
    subject, without = load(model), load(plain)

    def logits(of, *edits):
        return of.run(tokens, edits=edits).logits

    one, two = logits(subject), logits(subject, ZeroKeySlot())
    ours = logits(subject, RemoveKeySlot()), two, two
    same = logits(without), logits(without, AddSinkLogit(0.0)), logits(subject, RemoveKeySlot(), AddSinkLogit())
    torch.testing.assert_close(ours, same, rtol=0, atol=1e-5)
    assert min((one - two).abs().max(), (two - logits(without)).abs().max()) > 1e-3
