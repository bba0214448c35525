from dataclasses import replace

import pytest
import torch
from attention.layouts import band, random_mask
from einops import einsum, repeat

from sinkinterp.attention.call import AttentionCall
from sinkinterp.attention.kernels import Feature, Kernel
from sinkinterp.attention.masks import key_blocks
from sinkinterp.attention.slots import SinkLogit
from sinkinterp.metrics import qk
from sinkinterp.metrics.qk import qk_angles, qk_norm_products, score_gap

CONTRASTS = [qk_angles, qk_norm_products]


class ContrastFeature(Feature):
    def __call__(self, x):
        return torch.nn.functional.elu(x) + 1


def flat_call(q, k, **change):
    q, k = (torch.tensor(x)[None, None] for x in (q, k))
    return AttentionCall(0, q, k, k, scale=0.5, **change)


# angles with the keys: query 1 is at 45 degrees to keys 0 and 1, query 2 at 90, 0 and 0 degrees to keys 0, 1 and 2
SMALL = flat_call([[9.0, 9.0], [1.0, 1.0], [0.0, 2.0]], [[3.0, 0.0], [0.0, 4.0], [0.0, 1.0]])


def dense(call, position):
    """Cosines, norm products and scores, query by query and key by key."""
    n_heads, n_keys = call.q.shape[1], call.k.shape[2]
    k = call.kernel.feature(call.k).repeat_interleave(n_heads // call.k.shape[1], 1)
    q, allowed = call.kernel.feature(call.q), call.allowed().expand(2, n_heads, -1, -1)
    found = torch.zeros(3, 2, n_heads, 2)
    for b in range(2):
        for h in range(n_heads):
            rows = []
            for i in range(q.shape[2]):
                others = [j for j in range(n_keys) if allowed[b, h, i, j] and j != position]
                if allowed[b, h, i, position] and others:
                    dots, sizes = k[b, h] @ q[b, h, i], k[b, h].norm(dim=-1) * q[b, h, i].norm()
                    table = torch.stack((dots / sizes, sizes * call.scale, dots * call.scale))
                    rows.append(torch.stack((table[:, position], table[:, others].mean(1)), -1))
            found[:, b, h] = torch.stack(rows).mean(0)
    return found


CALLS = {
    "causal": {},
    "window": {"mask": band(11, 3)},
    "fewer queries than keys": {"queries": 5, "keys": 13},
    "mask of each head": {"mask": random_mask(11)},
    "feature map": {"kernel": Kernel(feature=ContrastFeature())},
}


@pytest.mark.parametrize("position", [0, 2])
@pytest.mark.parametrize("fields", CALLS.values(), ids=CALLS)
def test_a_contrast_is_what_loops_over_pairs_find(make_call, fields, position):
    call = make_call(n_heads=6, **fields)
    for contrast, expected in zip(CONTRASTS, dense(call, position)[:2], strict=True):
        torch.testing.assert_close(contrast(call, position), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("contrast", CONTRASTS)
def test_a_contrast_does_not_depend_on_the_size_of_a_block_of_keys(make_call, contrast, monkeypatch):
    call = make_call(queries=13, mask=band(13, 7))
    whole = contrast(call, 3)
    monkeypatch.setattr(key_blocks, "__defaults__", (5,))
    torch.testing.assert_close(contrast(call, 3), whole)


def test_a_chosen_key_that_is_a_million_times_longer_does_not_drown_the_others(make_call):
    call = make_call(queries=13)
    k = call.k.clone()
    k[:, :, 0] *= 1e6
    for contrast in CONTRASTS:
        torch.testing.assert_close(contrast(replace(call, k=k))[..., 1], contrast(call)[..., 1])


def test_contrasts_worked_by_hand():
    r = 0.5**0.5
    torch.testing.assert_close(qk_angles(SMALL)[0, 0], torch.tensor([(r + 0) / 2, (r + 1) / 2]))
    torch.testing.assert_close(qk_norm_products(SMALL)[0, 0], torch.tensor([(3 / r + 6) / 2, (4 / r + 5) / 2]) * 0.5)
    # the last query alone sees the last key
    torch.testing.assert_close(qk_angles(SMALL, position=2)[0, 0], torch.tensor([1.0, 0.5]))
    torch.testing.assert_close(qk_norm_products(SMALL, position=2)[0, 0], torch.tensor([2.0, 7.0]) * 0.5)


@pytest.mark.parametrize("read", [*CONTRASTS, qk.norm_product_map])
def test_bias_softcap_and_slot_leave_a_contrast_and_its_pairs_as_they_are(make_call, read):
    call = make_call()
    changed = replace(call, bias=torch.randn(1, 6, 11, 11), softcap=0.1, slot=SinkLogit(torch.ones(6)))
    torch.testing.assert_close(read(changed), read(call), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("contrast", CONTRASTS)
def test_half_precision_is_summed_in_fp32(make_call, contrast):
    call = make_call()
    halved = replace(call, q=call.q.bfloat16(), k=call.k.bfloat16())
    rounded = replace(call, q=halved.q.float(), k=halved.k.float())
    assert torch.equal(contrast(halved), contrast(rounded))


def test_a_head_none_of_whose_queries_can_compare_has_no_contrast():
    assert qk_angles(replace(SMALL, mask=band(3, 1))).isnan().all()


def test_a_score_gap_worked_by_hand():
    parts = torch.stack(score_gap(torch.tensor([0.5, -0.1]), torch.tensor([4.0, 10.0])))
    torch.testing.assert_close(parts, torch.tensor([2 + 1, 0.6 * 7, -6 * 0.2]))


def test_angle_part_and_norm_part_sum_to_the_gap_of_mean_products(make_call):
    call = make_call(queries=13)
    angles, products = qk_angles(call), qk_norm_products(call)
    total, by_angle, by_norms = score_gap(angles, products)
    torch.testing.assert_close(by_angle + by_norms, total)
    means = angles * products
    torch.testing.assert_close(total, means[..., 0] - means[..., 1])


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
