from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from attention.layouts import band, layouts, random_mask
from refusals import refused

from sinkinterp.attention import fused, slots
from sinkinterp.attention.call import AttentionCall, call_of_interface
from sinkinterp.attention.kernels import (
    ClampedSum,
    EluFeature,
    ExpMinusOne,
    Kernel,
    PNorm,
    PositiveShare,
    Raw,
    Rectified,
    Sigmoid,
    Unit,
)
from sinkinterp.attention.masks import key_blocks
from sinkinterp.attention.slots import SinkLogit, SlotRow
from sinkinterp.metrics import importance as metrics, qk
from sinkinterp.spec import Dims

T = 11
INDEX = torch.arange(T)
BAND = band(T, 4)
SLOT = SlotRow(torch.randn(6, 1, 5), torch.randn(6, 1, 5))
SOFTPICK = Kernel(similarity=ExpMinusOne(), normaliser=PositiveShare())
UNNORMALISED = Kernel(similarity=Sigmoid(), normaliser=Unit())
FIELDS = layouts(T, 4) | {
    "key slot in a window": {"mask": BAND, "slot": SLOT},
    "sigmoid": {"kernel": UNNORMALISED},
    "sigmoid with slot": {"kernel": UNNORMALISED, "slot": SlotRow(SLOT.key, SLOT.value * 0)},
    "normalised sigmoid": {"kernel": Kernel(similarity=Sigmoid())},
    "linear": {"kernel": Kernel(similarity=Raw(), normaliser=Unit(), alpha=0.5)},
    "softpick": {"kernel": SOFTPICK},
    "softpick with slot": {"kernel": SOFTPICK, "slot": SLOT},
    "clamped linear in a window": {"kernel": Kernel(similarity=Raw(), normaliser=ClampedSum()), "mask": BAND},
    "p-norm with sink logit": {"kernel": Kernel(normaliser=PNorm(2.0)), "slot": SinkLogit(torch.randn(6))},
    "relu": {"kernel": Kernel(similarity=Rectified(Raw()), normaliser=Unit())},
    "elu kernel": {"kernel": Kernel(EluFeature(), Raw())},
    "normalised sigmoid, a mask of each head": {
        "kernel": Kernel(similarity=Sigmoid()),
        "mask": random_mask(T) & band(T, T),
    },
    "normalised sigmoid with sink logit": {"kernel": Kernel(similarity=Sigmoid()), "slot": SinkLogit(torch.randn(6))},
    "p-norm in a window, with slot": {"kernel": Kernel(normaliser=PNorm(2.0)), "mask": BAND, "slot": SLOT},
}
every_call = pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)


@every_call
def test_what_a_call_streams_is_what_its_dense_pattern_gives(make_call, fields, monkeypatch):
    monkeypatch.setattr(key_blocks, "__defaults__", (3,))
    call = make_call(**fields)
    dense, n = call.pattern(), call.k.shape[2]
    tokens, rows, keys = dense[..., -n:], slice(1, 3), torch.tensor([4, 0])
    torch.testing.assert_close(call.column_mass(), tokens.sum(2), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(call.column_mass(keys), tokens.sum(2)[..., keys], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(call.weights_at(keys, rows), tokens[:, :, rows, keys], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(call.output(), call.mix(dense))
    slot = dense[..., 0] if call.slot is not None else torch.zeros(dense.shape[:3])
    torch.testing.assert_close(call.slot_mass(), slot.sum(2))
    assert (call.slot_weights() is None) == (call.slot is None)


@pytest.mark.parametrize(("kv_heads", "width", "of_values"), [(6, 5, 7), (3, 7, 2), (2, 3, 11)])
def test_the_default_scale_is_that_of_pytorch_where_values_have_another_width(kv_heads, width, of_values):
    q, k = torch.randn(2, 6, T, width), torch.randn(2, kv_heads, T, width)
    v = torch.randn(2, kv_heads, T, of_values)
    call = call_of_interface(0, q, k, v, None, None)
    want = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(call.output(), want, rtol=0, atol=1e-5)
    by_hand = (q @ k.repeat_interleave(6 // kv_heads, 1).mT / width**0.5).masked_fill(~band(T, T), -torch.inf)
    torch.testing.assert_close(call.pattern(), by_hand.softmax(-1), rtol=0, atol=1e-5)
    given = call_of_interface(0, q, k, v, None, 0.3)
    torch.testing.assert_close(given.scores(), call.scores() * 0.3 * width**0.5, rtol=0, atol=1e-4)


@pytest.mark.parametrize("mask", [None, BAND], ids=["causal", "window"])
def test_a_softmax_call_is_scaled_dot_product_attention_bit_for_bit(make_call, mask):
    call = make_call(mask=mask)
    want = F.scaled_dot_product_attention(call.q, call.k, call.v, mask, is_causal=mask is None, enable_gqa=True)
    assert call.is_fused and call.output().equal(want)


PLAIN = {name: FIELDS[name] for name in ("causal", "window", "key slot", "key slot in a window")}
PLAIN["a mask of each head"] = {"mask": random_mask(T)}
PLAIN["after a cache"] = {"queries": 3, "keys": 5}
PLAIN["one query after a cache"] = {"queries": 1, "keys": 5}
PLAIN["a query that sees nothing"] = {"mask": BAND & (INDEX != 4)[:, None]}


@pytest.mark.parametrize("fields", PLAIN.values(), ids=PLAIN)
def test_the_kernel_for_other_devices_gives_the_output_and_gradient_of_the_dense_pattern(make_call, fields):
    call = make_call(**fields)
    leaves = [call.q, call.k, call.v] + ([call.slot.key, call.slot.value] if call.slot else [])
    for leaf in leaves:
        leaf.requires_grad_()
    by_pattern, by_kernel = call.mix(call.pattern()), fused.sdpa(call)
    torch.testing.assert_close(by_kernel, by_pattern)
    weights = torch.randn_like(by_pattern)
    wanted, computed = (torch.autograd.grad((z * weights).sum(), leaves) for z in (by_pattern, by_kernel))
    for want, grad in zip(wanted, computed, strict=True):
        torch.testing.assert_close(grad, want)


def test_queries_after_a_cache_are_aligned_with_the_last_keys(make_call):
    assert make_call(queries=3, keys=5).allowed()[0, 0].sum(-1).tolist() == [3, 4, 5]
    last = make_call(queries=1, keys=7)
    assert last.allowed().tolist() == [[[[True] * 7]]]
    torch.testing.assert_close(last.output(), last.mix(last.pattern()))


@every_call
def test_no_output_depends_on_later_keys(make_call, fields):
    call = make_call(**fields)
    later_k, later_v = call.k.clone(), call.v.clone()
    later_k[:, :, 7:], later_v[:, :, 7:] = 5.0, -5.0
    changed = replace(call, k=later_k, v=later_v)
    torch.testing.assert_close(changed.output()[:, :, :7], call.output()[:, :, :7])


def test_half_precision_calls_are_summed_in_single_precision(make_call):
    call = make_call(queries=257)
    half = replace(call, q=call.q.bfloat16(), k=call.k.bfloat16(), v=call.v.bfloat16())
    single = replace(half, q=half.q.float(), k=half.k.float(), v=half.v.float())
    assert half.column_mass().dtype == half.log_normaliser().dtype == torch.float32
    torch.testing.assert_close(half.column_mass(), single.column_mass(), rtol=0, atol=1e-2)


def test_watchers_and_columns_are_counted_by_the_mask(make_call):
    call = make_call(mask=BAND, slot=SinkLogit(torch.zeros(6)))
    assert call.watchers(torch.tensor([0, 5, 10]))[0, 0].tolist() == [4, 4, 1]
    assert call.columns_seen()[0, 0].tolist() == [2, 3, 4, 5, 5, 5, 5, 5, 5, 5, 5]


@pytest.mark.parametrize("softcap", [None, 0.7])
def test_scores_are_capped_products_and_a_bias_written_out(make_call, softcap):
    call = make_call(bias=torch.randn(2, 6, 11, 11), softcap=softcap, scale=0.3)
    expected = torch.zeros(2, 6, 11, 11)
    for b, h, i, j in torch.ones_like(expected).nonzero().tolist():
        score = 0.3 * (call.q[b, h, i] @ call.k[b, h // 2, j])
        capped = score if softcap is None else softcap * (score / softcap).tanh()
        expected[b, h, i, j] = capped + call.bias[b, h, i, j]
    torch.testing.assert_close(call.scores(), expected)
    keys, rows = torch.tensor([7, 0, 3]), slice(2, 9)
    torch.testing.assert_close(call.scores(keys, rows), expected[:, :, rows][..., keys])


def test_a_call_is_shown_by_its_layer_and_sizes(make_call):
    call = make_call(queries=7, keys=11)
    (batch, heads, _, d_head), kv_heads = call.q.shape, call.k.shape[1]
    assert d_head not in (7, 11)
    shown = f"{batch} x 7 queries, 11 keys, {heads} heads ({kv_heads} kv) of {d_head}"
    assert repr(call) == f"<AttentionCall of layer {call.layer}: {shown}>"


CAUSAL = torch.ones(1, 1, 7, 7).tril().bool()


def random_call(**change):
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 6, 7, 5), torch.randn(2, 3, 7, 5), torch.randn(2, 3, 7, 11)
    slot = SlotRow(torch.randn(6, 1, 5), torch.randn(6, 1, 11))
    return AttentionCall(0, q, k, v, 0.5, **{"slot": slot} | change)


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


def test_a_pattern_that_looks_ahead_is_refused():
    call = random_call()
    refused(lambda: call.with_pattern(torch.full((2, 6, 7, 8), 0.2)))
    assert call.with_pattern(0.2 * torch.ones(2, 6, 7, 8).tril(1)).pattern()[0, 0, 0].tolist()[2:] == [0] * 6


def test_a_pattern_of_another_shape_and_a_normaliser_behind_a_pattern_are_refused():
    call = random_call()
    for shape in ((2, 6, 7, 7), (2, 6, 7, 9), (3, 6, 7, 8)):
        refused(partial(call.with_pattern, torch.zeros(shape)), "shape")
    refused(lambda: call.with_pattern(call.pattern()).log_normaliser())


@pytest.mark.parametrize("change", [{}, {"slot": None}, {"kernel": UNNORMALISED}, {"mask": CAUSAL}])
def test_a_call_whose_own_pattern_is_fixed_answers_as_before(change):
    call = random_call(**change)
    fixed = call.with_pattern(call.pattern())
    torch.testing.assert_close(fixed.output(), call.mix(call.pattern()))
    torch.testing.assert_close(metrics.slot_importance(fixed), metrics.slot_importance(call))
    for read in (metrics.importance, metrics.raw_importance, metrics.uniform_importance):
        for convention in (metrics.VISIBLE, metrics.PAPER):
            torch.testing.assert_close(*(read(x, call.keys, convention) for x in (fixed, call)))
    for contrast in (qk.qk_angles, qk.qk_norm_products):
        assert contrast(fixed).equal(contrast(call))


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


def test_the_heads_whose_weights_were_set_are_those_of_all_edits(make_call):
    call, one, other = make_call(), torch.arange(6) == 1, torch.arange(6) == 4
    weights = call.pattern()
    set_once = call.with_pattern(weights, one)
    assert set_once.set_pattern.heads.equal(one)
    for heads in (other, one | other):
        assert set_once.with_pattern(weights, heads).set_pattern.heads.equal(one | other)
    for first, second in ((one, None), (None, one), (None, None)):
        assert call.with_pattern(weights, first).with_pattern(weights, second).set_pattern.heads is None


def test_weights_that_are_not_finite_are_not_called_hidden_keys(make_call):
    call = make_call()
    for wrong in (float("nan"), float("inf")):
        weights = call.pattern().clone()
        weights[0, 1, 5, 2] = wrong
        refused(partial(call.with_pattern, weights), "weights")


DIMS = Dims(21, 3, 7, 5)


def test_fixed_values_have_the_length_they_say_along_the_axis_they_say():
    first, even = (slots.KeySlot(v=v(5.0)).build(DIMS)().value for v in (slots.FirstAxis, slots.EvenRow))
    assert first.shape == even.shape == (3, 1, 7)
    assert first[2, 0].tolist() == [5, 0, 0, 0, 0, 0, 0]
    torch.testing.assert_close(even, torch.full((3, 1, 7), 5 / 7**0.5))
    assert [row.build(DIMS).norm().item() for row in (slots.FirstAxis(), slots.EvenRow())] == pytest.approx([1, 1])


def test_only_the_trained_dimensions_of_a_row_are_not_zero_and_learn():
    built = slots.KeySlot(slots.LearnedRow(dims=2)).build(DIMS)
    key = built().key
    assert key[..., :2].ne(0).all() and key[..., 2:].eq(0).all()
    assert {name: p.numel() for name, p in built.named_parameters() if p.requires_grad} == {"key": 6}


def test_a_shared_row_is_that_of_every_head_and_others_are_their_own():
    shared, own = slots.KeySlot(slots.LearnedRow(shared=True)).build(DIMS)().key, slots.KeySlot().build(DIMS)().key
    assert shared.shape == (3, 1, 7) and shared[0].equal(shared[1]) and shared[0].equal(shared[2])
    assert not own[0].equal(own[1])


def test_a_logit_slot_scores_every_query_alike_and_has_one_number_per_head():
    built = slots.LogitSlot().build(DIMS)
    assert built.logit.shape == (3,)
    scores = built().scores(torch.randn(2, 3, 5, 7), 0.3)
    assert scores.equal(built.logit[None, :, None, None].expand(2, 3, 5, 1))


def test_hidden_columns_are_as_if_no_query_saw_them_the_slots_too(make_call):
    call = make_call(slot=SinkLogit(torch.randn(6)))
    seen = call.allowed().clone()
    seen[..., 4] = False
    without = torch.zeros(12, dtype=torch.bool)
    without[[0, 5]] = True  # the slot, and key 4 behind it
    pattern = call.computed_pattern(without)
    assert pattern[..., [0, 5]].eq(0).all()
    torch.testing.assert_close(pattern[..., 1:], replace(call, slot=None, mask=seen).pattern())


def test_no_slot_is_none_and_zero_rows_are_not_trained():
    assert slots.NoSlots().build(DIMS)() is None
    assert not any(p.requires_grad for p in slots.KeySlot(slots.ZeroRow(), slots.ZeroRow()).build(DIMS).parameters())


@pytest.mark.parametrize("std", [0.02, 3.0])
def test_what_is_trained_is_drawn_around_zero_with_the_deviation_it_says(std):
    dims = Dims(4001 * 7, 4001, 7, 5)
    for drawn in (slots.LearnedRow(std=std).build(dims), slots.LogitSlot(std).build(dims).logit):
        assert drawn.std().item() == pytest.approx(std, rel=0.06)
        assert abs(drawn.mean().item()) < 0.08 * std
    assert (slots.LearnedRow().std, slots.LogitSlot().std) == (0.02, 0.02)
