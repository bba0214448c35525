import math
from dataclasses import replace

import pytest
import torch
from einops import rearrange

from sinkinterp.attention.slots import SinkLogit, SlotRow
from sinkinterp.metrics.importance import (
    PAPER,
    RELEASED,
    VISIBLE,
    content_free_importance,
    importance,
    uniform_importance,
    uniform_slot_importance,
)

CONVENTIONS = {"visible": VISIBLE, "paper": PAPER, "released": RELEASED}
every_convention = pytest.mark.parametrize("convention", CONVENTIONS.values(), ids=CONVENTIONS)


def steps_back(queries, keys):
    """How many tokens each key stands behind each query."""
    return torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)


def windowed(n, width, prefix=0):
    back = steps_back(n, n)
    return ((back >= 0) & (back < width) | (torch.arange(n) < prefix))[None, None]


def dense_null(call, convention):
    """The null from a T x T map; every column that a query sees has an equal share."""
    queries, keys = call.q.shape[2], call.k.shape[2]
    behind = steps_back(queries, keys)[None, None]
    seen = behind >= 0 if call.mask is None else call.mask
    shares = seen / (seen.sum(-1, keepdim=True) + (call.slot is not None))
    mass = (shares * (behind >= 0) if convention is PAPER else shares).sum(2)
    return mass / (seen.sum(2) if convention is VISIBLE else (behind >= 0).sum(2))


@pytest.mark.parametrize("n", [7, 64, 131])
@every_convention
def test_uniform_causal_attention_gives_key_k_the_mean_of_one_over_i_from_k_on(make_call, n, convention):
    found = uniform_importance(make_call(queries=n), torch.tensor([0, 4]), convention)
    first, fifth = (math.fsum(1 / i for i in range(k, n + 1)) / (n - k + 1) for k in (1, 5))
    torch.testing.assert_close(found, torch.tensor([first, fifth]).expand(2, 6, 2))
    assert n != 64 or first == pytest.approx(0.0741, abs=5e-5)


CALLS = {
    "window, over blocks of keys": {"queries": 131, "mask": windowed(131, 5)},
    "prefix": {"queries": 11, "mask": windowed(11, 11, prefix=3)},
    "prefix and window": {"queries": 71, "mask": windowed(71, 5, prefix=3)},
    "slot": {"queries": 13, "slot": SlotRow(torch.ones(6, 1, 5), torch.ones(6, 1, 5))},
    "slot in a window": {"queries": 13, "mask": windowed(13, 5), "slot": SinkLogit(torch.ones(6))},
    "fewer queries than keys": {"queries": 5, "keys": 11},
    "fewer queries than keys, with a slot": {"queries": 5, "keys": 11, "slot": SinkLogit(torch.ones(6))},
}


@every_convention
@pytest.mark.parametrize("fields", CALLS.values(), ids=CALLS)
def test_the_uniform_null_is_that_of_the_dense_map(make_call, fields, convention):
    call = make_call(**fields)
    expected = dense_null(call, convention).expand(2, 6, -1)
    torch.testing.assert_close(uniform_importance(call, call.keys, convention), expected)
    some = torch.tensor([0, 3, 4])
    torch.testing.assert_close(uniform_importance(call, some, convention), expected[..., some])
    if not isinstance(call.slot, SinkLogit):
        torch.testing.assert_close(content_free_importance(call, some, convention), expected[..., some])


def test_the_slots_null_is_the_mean_of_one_over_the_columns_seen(make_call):
    found = uniform_slot_importance(make_call(queries=5, keys=7, slot=SinkLogit(torch.ones(6))))
    torch.testing.assert_close(found, torch.full((2, 6), sum(1 / n for n in (4, 5, 6, 7, 8)) / 5))
    assert uniform_slot_importance(make_call()).eq(0).all()


@pytest.mark.parametrize("convention", [VISIBLE, PAPER], ids=["visible", "paper"])
def test_alibi_without_content_is_a_geometric_series(make_call, convention):
    n, slopes = 131, 2.0 ** -torch.arange(1, 7, dtype=torch.float64)
    call = make_call(queries=n, bias=(-slopes[:, None, None] * steps_back(n, n)).float()[None])
    query, key = torch.arange(n)[:, None], torch.arange(n)
    m = rearrange(slopes, "head -> head 1 1")
    weights = (-m * (query - key)).exp() * (1 - (-m).exp()) / (1 - (-m * (query + 1)).exp()) * (key <= query)
    expected = (weights.sum(1) / (n - key)).float()
    torch.testing.assert_close(content_free_importance(call, key, convention), expected.expand(2, 6, n))


def test_a_sink_logit_takes_its_share_without_content(make_call):
    logit = torch.linspace(-3, 3, 6)
    call = make_call(slot=SinkLogit(logit))
    rows = torch.arange(1, 12) + logit.exp()[:, None]  # every visible token weighs 1, the slot e^logit
    expected = torch.stack([(1 / rows)[:, k:].mean(-1) for k in range(11)], -1)
    torch.testing.assert_close(content_free_importance(call, call.keys), expected.expand(2, 6, 11))


def test_content_does_not_move_a_null(make_call):
    slot = SlotRow(torch.randn(6, 1, 5), torch.randn(6, 1, 5))
    one, other = (make_call(bias=-0.2 * steps_back(11, 11).float()[None, None], slot=slot) for _ in range(2))
    assert not importance(one, one.keys).allclose(importance(other, one.keys))
    for null in (uniform_importance, content_free_importance):
        assert null(one, one.keys).equal(null(other, one.keys))


@pytest.mark.parametrize("fields", [{"slot": SinkLogit(torch.ones(6))}, {"bias": torch.randn(1, 6, 11, 11)}])
def test_a_pattern_that_was_set_has_the_nulls_of_the_call_it_replaced(make_call, fields):
    call = make_call(**fields)
    fixed = call.with_pattern(torch.rand_like(call.pattern()) * (call.pattern() > 0))
    for null in (uniform_importance, content_free_importance):
        torch.testing.assert_close(null(fixed, call.keys), null(call, call.keys))


@pytest.mark.parametrize("mask", [windowed(11, 5, prefix=2), torch.cat([windowed(11, 3), windowed(11, 7)])])
def test_a_bias_of_zeros_leaves_the_uniform_null_of_each_sequence(make_call, mask):
    call = make_call(mask=mask, bias=torch.zeros(1, 1, 11, 11))
    for convention in (VISIBLE, PAPER):
        biased = content_free_importance(call, call.keys, convention)
        torch.testing.assert_close(biased, dense_null(call, convention).expand(2, 6, -1))


def test_a_bias_per_sequence_has_a_null_per_sequence(make_call):
    bias = torch.randn(2, 1, 11, 11)
    weights = bias.masked_fill(steps_back(11, 11) < 0, -torch.inf).softmax(-1)
    expected = (weights.sum(2) / torch.arange(11, 0, -1)).expand(2, 6, -1)
    call = make_call(bias=bias)
    torch.testing.assert_close(content_free_importance(call, call.keys), expected)


def test_every_sequence_has_the_null_of_a_bias_that_all_share(make_call):
    call = make_call(batch=5, bias=-0.2 * steps_back(11, 11).float()[None, None])
    nulls = content_free_importance(call, call.keys)
    one = replace(call, q=call.q[:1], k=call.k[:1], v=call.v[:1])
    torch.testing.assert_close(nulls, content_free_importance(one, call.keys).expand(5, 6, 11))
