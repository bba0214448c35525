from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from attention.layouts import band, layouts

from sinkinterp.attention import fused
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
}
every_call = pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)


@every_call
def test_streamed_column_mass_is_the_dense_patterns(make_call, fields, monkeypatch):
    monkeypatch.setattr(key_blocks, "__defaults__", (3,))
    call = make_call(**fields)
    dense = call.pattern()[..., -T:].sum(2)
    torch.testing.assert_close(call.column_mass(), dense, rtol=0, atol=1e-5)
    torch.testing.assert_close(call.column_mass(torch.tensor([7, 0])), dense[..., [7, 0]], rtol=0, atol=1e-5)


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


@every_call
def test_slot_mass_is_the_dense_patterns_first_column(make_call, fields):
    call = make_call(**fields)
    want = call.pattern()[..., 0].sum(-1) if call.slot is not None else torch.zeros(2, 6)
    torch.testing.assert_close(call.slot_mass(), want)


@every_call
def test_output_mixes_values_by_the_pattern(make_call, fields):
    call = make_call(**fields)
    torch.testing.assert_close(call.output(), call.mix(call.pattern()))


def test_grouped_queries_read_the_kv_head_of_their_group(make_call):
    call = make_call()
    each = replace(call, k=call.k.repeat_interleave(2, 1), v=call.v.repeat_interleave(2, 1))
    torch.testing.assert_close(call.pattern(), each.pattern())
    torch.testing.assert_close(call.output(), each.output())


@pytest.mark.parametrize("mask", [None, BAND], ids=["causal", "window"])
def test_a_softmax_call_is_scaled_dot_product_attention_bit_for_bit(make_call, mask):
    call = make_call(mask=mask)
    want = F.scaled_dot_product_attention(call.q, call.k, call.v, mask, is_causal=mask is None, enable_gqa=True)
    assert call.is_fused and call.output().equal(want)


PLAIN = {name: FIELDS[name] for name in ("causal", "window", "key slot", "key slot in a window")}
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


@pytest.mark.parametrize(("fields", "patterns"), [(PLAIN["key slot"], 0), (FIELDS["softcap"], 1)])
def test_off_the_cpu_plain_softmax_makes_no_pattern(make_call, monkeypatch, fields, patterns):
    made, pattern = [], AttentionCall.computed_pattern
    monkeypatch.setattr(AttentionCall, "computed_pattern", lambda call: made.append(call) or pattern(call))
    slot = SlotRow(SLOT.key.to("meta"), SLOT.value.to("meta")) if "slot" in fields else None
    call = make_call(**fields | {"slot": slot})
    elsewhere = replace(call, **{name: getattr(call, name).to("meta") for name in "qkv"})
    assert elsewhere.output().shape == call.q.shape and not elsewhere.is_fused and len(made) == patterns


def test_the_fused_log_sum_exp_is_that_of_the_scores(make_call):
    call = make_call()
    want = call.scores().masked_fill(~call.allowed(), -torch.inf).logsumexp(-1)
    torch.testing.assert_close(call.log_normaliser(), want)


@pytest.mark.parametrize("zero", [SlotRow(torch.zeros(6, 1, 5), torch.zeros(6, 1, 5)), SinkLogit(torch.zeros(6))])
def test_a_zero_slot_is_softmax_off_by_one(make_call, zero):
    call = make_call(slot=zero)
    e = call.scores().exp() * call.allowed()
    torch.testing.assert_close(call.pattern()[..., 1:], e / (1 + e.sum(-1, keepdim=True)))


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
