"""Maps and counts of pairs against the definitions written out, and against the means of `qk`."""

import pytest
import torch
from attention.layouts import band
from einops import einsum, repeat

from sinkinterp.metrics import qk


def products(call):
    q, k = call.q, repeat(call.k, "b kv j d -> b (kv group) j d", group=call.q.shape[1] // call.k.shape[1])
    return einsum(q, k, "b h i d, b h j d -> b h i j"), q.norm(dim=-1)[..., :, None] * k.norm(dim=-1)[..., None, :]


def test_maps_are_dots_and_lengths_and_their_ratio_where_keys_are_seen(make_call):
    call = make_call(softcap=3.0)
    dots, lengths = products(call)
    future = torch.ones(11, 11).triu(1).bool()
    for found, expected in (
        (qk.score_map(call), 3 * (dots * call.scale / 3).tanh()),
        (qk.norm_product_map(call), lengths * call.scale),
        (qk.cosine_map(call), dots / lengths),
    ):
        assert found.isnan().equal(future.expand_as(found))
        torch.testing.assert_close(found, expected.masked_fill(future, torch.nan), equal_nan=True)


@pytest.mark.parametrize("length", [2, 11, 131])  # 131: several blocks of keys
def test_counts_are_those_of_the_map(make_call, length):
    call = make_call(queries=length)
    for counts, found, edges in (
        (qk.cosine_counts(call), qk.cosine_map(call), qk.COSINES),
        (qk.norm_product_counts(call), qk.norm_product_map(call), qk.NORMS),
    ):
        watching = found[..., 1:, :]  # the first query sees the first key alone
        for which, keys in enumerate((slice(0, 1), slice(1, None))):
            for b, h in ((0, 0), (1, 5)):
                values = watching[b, h, :, keys]
                expected = torch.histogram(values[~values.isnan()], torch.tensor(edges)).hist
                torch.testing.assert_close(counts[b, h, which], expected)


def test_all_pairs_are_counted_even_beyond_the_edges(make_call):
    call = make_call(scale=1e9)
    first, others = qk.norm_product_counts(call).unbind(2)
    assert first.sum(-1).eq(10).all() and others.sum(-1).eq(10 * 11 / 2).all()
    assert first[..., -1].eq(10).all()


def test_means_of_the_counts_are_near_the_means_of_qk(make_call):
    call = make_call(queries=61)
    centres = torch.tensor(qk.COSINES).unfold(0, 2, 1).mean(-1)
    first = qk.cosine_counts(call)[:, :, 0]
    torch.testing.assert_close(
        (first * centres).sum(-1) / first.sum(-1), qk.qk_angles(call)[..., 0], atol=0.025, rtol=0
    )


def test_a_window_hides_pairs(make_call):
    first, others = qk.cosine_counts(make_call(mask=band(11, 3))).sum(-1).unbind(2)
    assert first.eq(2).all() and others.eq(1 + 2).all()


def test_bins_span_what_they_say(make_call):
    assert len(qk.COSINES) == len(qk.NORMS) == 41
    assert (qk.COSINES[0], qk.COSINES[20], qk.COSINES[-1]) == (-1, 0, 1)
    assert (qk.NORMS[0], qk.NORMS[16], qk.NORMS[-1]) == (1 / 256, 1, 4096)
    assert qk.cosine_counts(make_call()).shape == qk.norm_product_counts(make_call()).shape == (2, 6, 2, 40)
