from dataclasses import replace
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from attention.layouts import band

from sinkinterp.attention.call import call_of_interface, is_causal_call, unscaled
from sinkinterp.attention.kernels import SOFTMAX, Kernel
from sinkinterp.attention.slots import SinkLogit

T = 11
BAND = band(T, 4)


def test_an_additive_mask_is_split_into_what_it_forbids_and_what_it_adds(make_call):
    call = make_call()
    added = -0.3 * (torch.arange(T)[:, None] - torch.arange(T)).abs().float()[None, None]
    additive = torch.where(BAND, added, torch.finfo(torch.float32).min)
    split = call_of_interface(3, call.q, call.k, call.v, additive, call.scale)
    assert split.mask.equal(BAND)
    torch.testing.assert_close(split.pattern(), replace(call, mask=BAND, bias=added).pattern())


def test_an_additive_mask_that_adds_nothing_leaves_no_bias(make_call):
    call = make_call()
    additive = torch.zeros(1, 1, T, T).masked_fill(~BAND, torch.finfo(torch.float32).min)
    assert call_of_interface(3, call.q, call.k, call.v, additive, None).bias is None


def test_half_of_the_smallest_number_and_less_forbid_also_after_something_was_added(make_call):
    call, least = make_call(), torch.finfo(torch.float32).min
    for forbidden in (-torch.inf, least, 0.75 * least, 0.5 * least):
        additive = torch.where(BAND, 0.3, forbidden)
        assert call_of_interface(3, call.q, call.k, call.v, additive, None).mask.equal(BAND)
    additive = torch.where(BAND, 0.3, 0.25 * least)
    assert call_of_interface(3, call.q, call.k, call.v, additive, None).mask.all()


def test_a_bias_of_keys_is_that_of_the_querys_distance_and_gives_way_to_a_bias_of_pairs(make_call):
    call = make_call(queries=5, keys=T)
    slopes, key = torch.rand(1, 6, 1, 1), torch.arange(T).float()
    split = call_of_interface(3, call.q, call.k, call.v, None, call.scale, key_bias=slopes * key)
    torch.testing.assert_close(split.bias, slopes * (key - key[-5:, None]))
    pairs = torch.randn(1, 6, 5, T)
    both = call_of_interface(3, call.q, call.k, call.v, None, 1.0, key_bias=slopes * key, position_bias=pairs)
    assert both.bias is pairs


def test_without_a_mask_a_call_that_is_not_causal_sees_every_key(make_call):
    call = make_call(queries=T, keys=T + 6)
    read = call_of_interface(3, call.q, call.k, call.v, None, call.scale, is_causal=False)
    k = call.k.repeat_interleave(2, 1)
    torch.testing.assert_close(read.pattern(), (call.q @ k.mT * call.scale).softmax(-1))
    torch.testing.assert_close(read.output(), F.scaled_dot_product_attention(call.q, k, call.v.repeat_interleave(2, 1)))
    assert read.watchers(read.keys).eq(T).all()


def test_a_call_is_causal_where_the_interface_or_else_the_module_says_so():
    module = SimpleNamespace(is_causal=False)
    says = ((object(), {}), (module, {}), (module, {"is_causal": None}), (module, {"is_causal": True}),
            (object(), {"is_causal": False}))  # fmt: skip
    assert [is_causal_call(*each) for each in says] == [True, False, False, True, False]


def test_a_bias_of_zeros_is_none_where_every_key_is_seen(make_call):
    call, zeros = make_call(), torch.zeros(1, 6, T, T)
    for bias, is_none in ((zeros, True), (zeros + 0.1, False)):
        read = call_of_interface(3, call.q, call.k, call.v, None, 1.0, is_causal=False, position_bias=bias)
        assert (read.bias is None) is is_none


def test_a_bias_of_positions_is_added_to_that_of_an_additive_mask(make_call):
    call, bias, added = make_call(), torch.randn(1, 6, T, T), torch.randn(1, 1, T, T)
    additive = torch.where(BAND, added, torch.finfo(torch.float32).min)
    read = call_of_interface(3, call.q, call.k, call.v, additive, call.scale, position_bias=bias)
    assert read.mask.equal(BAND)
    torch.testing.assert_close(read.bias.masked_fill(~BAND, 0), (bias + added).masked_fill(~BAND, 0))


def test_what_the_interface_leaves_out_has_its_usual_value_and_what_it_names_is_taken(make_call):
    call = make_call()
    plain = call_of_interface(3, call.q, call.k, call.v, None, None)
    assert (plain.layer, plain.scale) == (3, 5**-0.5)
    assert all(getattr(plain, name) is None for name in ("mask", "bias", "softcap", "slot"))
    assert plain.kernel == SOFTMAX and plain.q is call.q and plain.k is call.k and plain.v is call.v
    logits, slot, kernel = torch.randn(6), SinkLogit(torch.randn(6)), Kernel(alpha=0.5)
    read = call_of_interface(3, call.q, call.k, call.v, BAND, 0.3, softcap=7.0, slot=slot, kernel=kernel)
    assert (read.scale, read.softcap, read.kernel) == (0.3, 7.0, kernel) and read.mask is BAND and read.slot is slot
    assert call_of_interface(3, call.q, call.k, call.v, None, 0.3, s_aux=logits, slot=slot).slot.logit is logits


def test_queries_that_a_model_scaled_itself_are_as_before_and_others_stay():
    q = torch.randn(2, 3, 5, 7)
    for scale, own, expected in ((1.0, 0.5, 0.5), (1.0, 1.0, 1), (1.0, 0.0, 1), (1.0, None, 1), (0.3, 0.5, 0.3)):
        queries, found = unscaled(SimpleNamespace(scaling=own), q, scale)
        assert found == expected and queries.equal(q / 0.5 if found == 0.5 else q)
