"""Kernels, temperatures and clipping against attention written out in one line."""

from dataclasses import replace
from functools import cache, partial

import pytest
import torch
from refusals import refused

from sinkinterp import interventions as iv
from sinkinterp.attention.kernels import SOFTMAX, ExpMinusOne, Kernel, PositiveShare, Rectified, Sigmoid, Unit
from sinkinterp.attention.sites import HeadWeights, LazyWeights
from sinkinterp.attention.slots import SinkLogit, SlotRow
from sinkinterp.interventions import BiasColumn, PatchNormalization, Temperature
from sinkinterp.interventions.attention_layers import BlindKeys


def written_out(call, weigh):
    """What heads return, `weigh` turning scores and allowed pairs into a pattern; no code of ours."""
    k, v = (t.repeat_interleave(2, 1) for t in (call.k, call.v))  # six query heads over three key heads
    scores = torch.einsum("bhid,bhjd->bhij", call.q, k) * call.scale
    causal = torch.ones(scores.shape[-2:]).tril().bool()
    return torch.einsum("bhij,bhjd->bhid", weigh(scores, causal), v)


def test_sigmoid_attention_is_what_it_is_written_out(make_call):
    call = make_call()
    by_hand = written_out(call, lambda scores, causal: scores.sigmoid() * causal)
    torch.testing.assert_close(PatchNormalization(Sigmoid()).call(call).output(), by_hand)


def test_a_function_of_scores_gives_the_weights_of_the_keys_that_are_seen(make_call):
    call = make_call()
    by_hand = written_out(call, lambda scores, causal: (scores.sigmoid() + 0.25) * causal)
    torch.testing.assert_close(PatchNormalization(lambda scores: scores.sigmoid() + 0.25).call(call).output(), by_hand)
    softmax = PatchNormalization(lambda scores: scores.softmax(-1))
    torch.testing.assert_close(softmax.call(call).output(), call.output())
    refused(lambda: PatchNormalization(lambda scores: 3.0).call(call), "weights")
    for wrong in (3, Sigmoid, None):
        refused(partial(PatchNormalization, wrong), "kernel")


def test_a_kernel_may_be_named_whole(make_call):
    call = make_call()
    softpick = PatchNormalization(Kernel(similarity=ExpMinusOne(), normaliser=PositiveShare())).call(call)

    def weigh(scores, causal):
        gain = (scores.exp() - 1) * causal
        return gain.relu() / gain.abs().sum(-1, keepdim=True)

    by_hand = written_out(call, weigh)[:, :, 1:]
    torch.testing.assert_close(softpick.output()[:, :, 1:], by_hand, rtol=1e-4, atol=1e-5)
    relu = PatchNormalization(Kernel(similarity=Rectified(), normaliser=Unit())).call(call)
    torch.testing.assert_close(relu.output(), written_out(call, lambda scores, causal: scores.relu() * causal))


def test_softmax_in_place_of_softmax_is_the_identity(make_call):
    for slot in (None, SinkLogit(torch.randn(6)), SlotRow(torch.randn(6, 1, 5), torch.randn(6, 1, 5))):
        call = make_call(slot=slot)
        for edit in (PatchNormalization(SOFTMAX), PatchNormalization(SOFTMAX, heads=[(3, 1)]), Temperature(1.0)):
            torch.testing.assert_close(edit.call(call).output(), call.output(), rtol=0, atol=1e-6)


def test_a_temperature_divides_scores_by_hand(make_call):
    call = make_call()
    by_hand = written_out(call, lambda scores, causal: (scores / 2.5).masked_fill(~causal, -torch.inf).softmax(-1))
    torch.testing.assert_close(Temperature(2.5).call(call).output(), by_hand)


@pytest.mark.parametrize(
    ("temperature", "message"), [(0.0, "above 0"), (-1.0, "above 0"), (float("nan"), "above 0; got nan")]
)
def test_a_temperature_is_above_zero(temperature, message):
    refused(lambda: Temperature(temperature), "temperature", message)


def test_edits_of_scores_compose_on_different_heads_and_are_refused_on_one(make_call):
    plain = make_call()
    call = PatchNormalization(Sigmoid(), heads=[(3, 0)]).call(plain)
    both = Temperature(2.0, heads=[(3, 1)]).call(call)
    assert both.pattern()[:, 0].equal(call.pattern()[:, 0])
    assert both.pattern()[:, 1].equal(Temperature(2.0).call(plain).pattern()[:, 1])
    assert both.pattern()[:, 2:].equal(plain.pattern()[:, 2:])
    three = BiasColumn(2.0, heads=[(3, 2)]).call(both)
    assert three.pattern()[:, :2].equal(both.pattern()[:, :2])
    torch.testing.assert_close(three.pattern()[:, 2], BiasColumn(2.0).call(plain).pattern()[:, 2])
    assert not three.pattern()[:, 2].allclose(plain.pattern()[:, 2])
    edits = (Temperature(2.0, heads=[(3, 0)]), Temperature(2.0, heads=[(3, 1), (3, 0)]), Temperature(2.0))
    for edit in (*edits, BiasColumn(2.0, heads=[(3, 0)])):
        refused(partial(edit.call, call), "edit")


WEIGHTS = HeadWeights(torch.randn(3, 5, 7), torch.ones(3, 5))
SITES = [(iv.ZeroQueryBias, "query_weights"), (iv.ZeroKeyBias, "key_weights"), (iv.ZeroValueBias, "value_weights")]


@pytest.mark.parametrize(("edit", "site"), SITES)
def test_the_bias_of_the_chosen_heads_is_zero_in_the_chosen_layers(edit, site):
    def left(layer, **on):
        weights = getattr(edit(**on), site)(layer, WEIGHTS)
        assert weights.weight is WEIGHTS.weight
        return weights.bias[:, 0].tolist()

    assert left(4) == [0, 0, 0]
    assert left(4, layers=[4]) == [0, 0, 0] and left(3, layers=[4]) == [1, 1, 1]
    named = "heads" if edit is iv.ZeroQueryBias else "kv_heads"
    assert left(4, **{named: [(4, 1)]}) == [1, 0, 1] and left(4, **{named: [(4, 0), (4, 2), (2, 1)]}) == [0, 1, 0]
    assert left(3, **{named: [(4, 1)]}) == [1, 1, 1]


@pytest.mark.parametrize("edit", [iv.ZeroKeyBias, iv.ZeroValueBias])
def test_keys_and_values_are_chosen_by_kv_heads(edit):
    refused(lambda: edit(heads=[(4, 1)]))
    refused(lambda: edit(kv_heads=[(4, 1)], layers=[4]), "kv_heads")
    refused(lambda: edit(kv_heads=[(4, 1), (4, 1)]), "kv_heads")


def test_a_weight_is_computed_once_and_only_where_it_is_asked_for():
    made = []
    lazy = LazyWeights(cache(lambda: made.append(1) or WEIGHTS.weight), WEIGHTS.bias)
    other = iv.ZeroKeyBias(kv_heads=[(4, 1)]).key_weights(4, lazy)
    assert other.bias[:, 0].tolist() == [1, 0, 1] and lazy.bias is WEIGHTS.bias and not made
    assert other.weight is lazy.weight is replace(other, bias=lazy.bias).weight and made == [1]


def test_blind_keys_read_all_other_dimensions_as_before():
    blind = BlindKeys([1, 4], layers=[2]).key_weights(2, WEIGHTS).weight
    x = torch.randn(11, 7)
    expected = torch.einsum("hed,nd->hne", WEIGHTS.weight, x * torch.tensor([1, 0, 1, 1, 0, 1, 1]))
    torch.testing.assert_close(torch.einsum("hed,nd->hne", blind, x), expected)
    assert BlindKeys([1, 4], layers=[2]).key_weights(3, WEIGHTS) is WEIGHTS


@pytest.mark.parametrize(("edit", "site"), SITES)
def test_a_layer_without_a_bias_is_named_where_its_bias_should_be_zero(edit, site):
    bare = HeadWeights(WEIGHTS.weight, None)
    assert getattr(edit(layers=[4]), site)(3, bare) is bare
    refused(lambda: getattr(edit(layers=[4]), site)(4, bare), "4")
