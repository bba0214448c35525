from dataclasses import replace
from functools import partial

import pytest
import torch
from refusals import refused

from sinkinterp.attention.call import AttentionCall
from sinkinterp.attention.kernels import Kernel, Sigmoid, Unit
from sinkinterp.attention.slots import SlotRow
from sinkinterp.metrics import importance as metrics
from sinkinterp.metrics import qk


def random_call(**change):
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 6, 7, 5), torch.randn(2, 3, 7, 5), torch.randn(2, 3, 7, 11)
    slot = SlotRow(torch.randn(6, 1, 5), torch.randn(6, 1, 11))
    return AttentionCall(0, q, k, v, 0.5, **{"slot": slot} | change)


@pytest.mark.parametrize("change", [{}, {"slot": None}, {"kernel": Kernel(similarity=Sigmoid(), normaliser=Unit())}])
def test_a_call_whose_own_pattern_is_fixed_answers_as_before(change):
    call = random_call(**change)
    fixed = call.with_pattern(call.pattern())
    positions = torch.tensor([0, 3, 6])
    assert torch.allclose(fixed.output(), call.mix(call.pattern()), atol=1e-6)
    for read in (metrics.importance, metrics.raw_importance, metrics.uniform_importance):
        assert torch.allclose(read(fixed, positions), read(call, positions), atol=1e-6)
    assert torch.allclose(metrics.slot_importance(fixed), metrics.slot_importance(call), atol=1e-6)


def test_the_weights_of_other_heads_are_still_those_of_their_scores():
    call, first, last = random_call(), torch.arange(6) < 2, torch.arange(6) > 3
    some, every = (call.with_pattern(call.pattern(), heads).set_pattern for heads in (first, None))
    some.check_computes(last)
    for pattern, heads in ((some, first), (some, first | last), (every, last)):
        refused(partial(pattern.check_computes, heads))


def test_weights_are_normalised_where_none_is_negative_and_rows_sum_to_one():
    even, signed = (torch.ones(2, 6, 7, 7).tril() / torch.arange(1, 8)[:, None]), torch.zeros(2, 6, 7, 7)
    signed[..., 0], signed[..., 1] = 1.5, -0.5
    signed[..., 0, :2] = torch.tensor([1.0, 0.0])
    of = [random_call(slot=None).with_pattern(weights).is_normalised for weights in (even, 2 * even, signed)]
    assert of == [True, False, False]


def test_columns_that_are_left_out_are_zero_and_the_others_stay_as_they_were_set():
    call, heads = random_call(slot=None), torch.arange(6) < 2
    set_to, without = torch.rand(2, 6, 7, 7).tril(), torch.arange(7) == 3
    every, some = (call.with_pattern(set_to, chosen).pattern_without(without) for chosen in (None, heads))
    assert every.equal(set_to.masked_fill(without, 0)) and some[:, :2].equal(every[:, :2])
    torch.testing.assert_close(some[:, 2:], call.computed_pattern(without)[:, 2:])


def test_metrics_read_the_pattern_that_was_set():
    call = random_call(slot=None)
    weights = torch.zeros(2, 6, 7, 7)
    weights[..., 2:, 2] = 0.25
    fixed = call.with_pattern(weights)
    assert metrics.importance(fixed, torch.tensor([0, 2])).unbind(-1)[0].eq(0).all()
    assert torch.allclose(metrics.raw_importance(fixed, torch.tensor([2])), torch.tensor(0.25))
    assert torch.allclose(metrics.importance(fixed, torch.tensor([2])), torch.tensor(1.0))  # a proxy: rows sum to 1/4
    assert torch.allclose(fixed.output()[:, 4, 2:], 0.25 * call.v[:, 2, 2][:, None].expand(-1, 5, -1))


def test_a_pattern_that_was_set_is_normalised_where_its_rows_are_shares_that_sum_to_one():
    call = random_call(slot=None)
    for weights, expected in ((call.pattern(), True), (call.pattern() * 0.9, False)):
        assert call.with_pattern(weights).is_normalised == expected
    weights = call.pattern()
    weights[0, 0, 3, :2] += torch.tensor([-2.0, 2.0])  # its row still sums to one
    assert not call.with_pattern(weights).is_normalised


def test_a_pattern_that_looks_ahead_is_refused():
    call = random_call()
    refused(lambda: call.with_pattern(torch.full((2, 6, 7, 8), 0.2)))
    assert call.with_pattern(0.2 * torch.ones(2, 6, 7, 8).tril(1)).pattern()[0, 0, 0].tolist()[2:] == [0] * 6


def test_a_pattern_of_another_shape_and_a_normaliser_behind_a_pattern_are_refused():
    call = random_call()
    refused(lambda: call.with_pattern(torch.zeros(2, 6, 7, 7)))
    refused(lambda: call.with_pattern(call.pattern()).log_normaliser())


CHANGES = {
    "q": torch.ones(2, 6, 7, 5), "k": torch.ones(2, 3, 7, 5), "scale": 0.25, "mask": torch.ones(1, 1, 7, 7).bool(),
    "bias": torch.zeros(1, 1, 7, 7), "softcap": 3.0, "slot": None, "kernel": Kernel(alpha=2.0),
}  # fmt: skip


@pytest.mark.parametrize("field", CHANGES)
def test_no_edit_of_scores_is_lost_behind_a_pattern(field):
    call, change = random_call(), {field: CHANGES[field]}
    fixed = call.with_pattern(call.pattern())
    refused(lambda: replace(fixed, **change))
    assert replace(fixed, v=call.v + 1).pattern().equal(call.pattern())
    assert replace(fixed.with_pattern(None), **change).set_pattern is None


def test_a_pattern_may_be_set_again():
    call = random_call()
    fixed = call.with_pattern(call.pattern()).with_pattern(call.pattern() / 2)
    assert fixed.pattern().equal(call.pattern() / 2)


def test_reads_of_queries_keys_and_masks_do_not_mind_a_pattern():
    call = random_call(slot=None, mask=torch.ones(1, 1, 7, 7).tril().bool())
    fixed = call.with_pattern(call.pattern())
    for contrast in (qk.qk_angles, qk.qk_norm_products):
        assert contrast(fixed).equal(contrast(call))
    for read in (metrics.importance, metrics.uniform_importance):
        paper = (read(x, call.keys, metrics.PAPER) for x in (fixed, call))
        torch.testing.assert_close(*paper)


def test_the_heads_whose_weights_were_set_are_those_of_all_edits(make_call):
    call, one, other = make_call(), torch.arange(6) == 1, torch.arange(6) == 4
    weights = call.pattern()
    set_once = call.with_pattern(weights, one)
    assert set_once.set_pattern.heads.equal(one)
    assert set_once.with_pattern(weights, other).set_pattern.heads.equal(one | other)
    for first, second in ((one, None), (None, one), (None, None)):
        assert call.with_pattern(weights, first).with_pattern(weights, second).set_pattern.heads is None


def test_weights_that_are_not_finite_are_not_called_hidden_keys(make_call):
    call = make_call()
    for wrong in (float("nan"), float("inf")):
        weights = call.pattern().clone()
        weights[0, 1, 5, 2] = wrong
        refused(partial(call.with_pattern, weights), "weights")
