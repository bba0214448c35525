from dataclasses import replace

import pytest
import torch
from attention.layouts import band

from sinkinterp.attention.call import AttentionCall
from sinkinterp.attention.kernels import Kernel, Raw, Sigmoid, Unit
from sinkinterp.attention.slots import SinkLogit, SlotRow
from sinkinterp.measurement.measure import PRESETS
from sinkinterp.metrics.importance import (
    PAPER,
    RELEASED,
    VISIBLE,
    hidden_queries,
    importance,
    importance_and_raw,
    off_sequence,
    raw_importance,
    sink_rate,
    slot_importance,
    uniform_importance,
    uniform_slot_importance,
)

SIGMOID, LINEAR = Kernel(similarity=Sigmoid(), normaliser=Unit()), Kernel(similarity=Raw(), normaliser=Unit())
ALL = torch.arange(3)


def draw(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def odd(queries=13, keys=13, **change):
    """A call at odd sizes: 2 sequences, 6 heads that share 3 kv heads."""
    return AttentionCall(0, draw(2, 6, queries, 5), draw(2, 3, keys, 5), draw(2, 3, keys, 5), scale=0.7, **change)


def scored(*scores, **change):
    """A call of one head whose score with key j is scores[j], whatever the query."""
    k = torch.tensor(scores)[None, None, :, None]
    return AttentionCall(0, torch.ones_like(k), k, torch.ones_like(k), scale=1.0, **change)


WEIGHTED = scored(*torch.tensor([1.0, 2.0, 5.0]).log().tolist())  # rows 1 | 1/3 2/3 | 1/8 2/8 5/8


def by_hand(measured, *expected):
    torch.testing.assert_close(measured, torch.tensor(expected).expand_as(measured), rtol=1e-5, atol=1e-6)


def test_a_key_that_no_query_sees_has_no_importance_and_no_null():
    seen = torch.ones(3, 3).tril().bool()
    seen[:, 1] = False
    call = replace(WEIGHTED, mask=seen[None, None])
    for convention in (VISIBLE, PAPER, RELEASED):
        for found in (importance(call, ALL, convention), uniform_importance(call, ALL, convention)):
            assert found.isfinite().all() and found[..., 1].eq(0).all() and found[..., 0].gt(0).all()


CALLS = {
    "causal": odd(),
    "more keys than one block": odd(131, 131),
    "fewer queries than keys": odd(5, 11),
    "window": odd(mask=band(13, 3)),
    "key slot": odd(slot=SlotRow(draw(6, 1, 5), draw(6, 1, 5) + 1)),
    "sink logit": odd(slot=SinkLogit(draw(6))),
    "softcap": odd(softcap=0.5),
    "sigmoid": odd(kernel=SIGMOID),
    "linear": odd(kernel=LINEAR),
    "normalised linear": odd(kernel=Kernel(similarity=Raw())),
    "half a softmax": odd(kernel=Kernel(alpha=0.5)),
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@every_call
def test_importance_is_the_column_sum_of_the_dense_pattern_over_the_queries_that_see_the_key(call):
    pattern, n = call.pattern(), len(call.keys)
    shares = pattern.abs() / pattern.abs().sum(-1, keepdim=True)
    seen = call.allowed().expand(2, 6, -1, n).sum(2)
    some = torch.tensor([0, n - 1, 3])
    expected = shares[..., -n:].sum(2) / seen
    torch.testing.assert_close(importance(call, call.keys), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(importance(call, some), expected[..., some], rtol=1e-4, atol=1e-5)
    raw = pattern[..., -n:].sum(2) / seen
    torch.testing.assert_close(raw_importance(call, some), raw[..., some], rtol=1e-4, atol=1e-5)
    slot = shares[..., :-n].sum((2, 3)) / shares.shape[2]
    torch.testing.assert_close(slot_importance(call), slot, rtol=1e-4, atol=1e-5)


def masked(*rows):
    return replace(WEIGHTED, mask=torch.tensor(rows).bool()[None, None])


SLOTTED = replace(WEIGHTED, slot=SinkLogit(torch.tensor([3.0]).log()))  # rows 3 1 | 3 1 2 | 3 1 2 5
ONE_SLOT = replace(WEIGHTED, slot=SinkLogit(torch.ones(1)))
BANDED = replace(WEIGHTED, mask=band(3, 2))  # rows 1 | 1/3 2/3 | 2/7 5/7
PREFIXED = masked([1, 1, 0], [1, 1, 0], [1, 1, 1])  # rows 1/3 2/3 | 1/3 2/3 | 1/8 2/8 5/8
BLIND = masked([0, 0, 0], [0, 1, 0], [0, 1, 1])  # the first query sees nothing
SIGMOIDAL = scored(*torch.tensor([1 / 2, 1 / 4, 3 / 4]).logit().tolist(), kernel=SIGMOID)
SIGNED, ZEROS = scored(1.0, -1.0, 2.0, kernel=LINEAR), scored(0.0, 0.0, 3.0, kernel=LINEAR)
FIRST = (1 / 3 + 1 / 3 + 1 / 8) / 3
BY_HAND = [  # what is read, of which call, by which convention; keys
    (importance, WEIGHTED, VISIBLE, (35 / 72, 11 / 24, 5 / 8)),
    (raw_importance, WEIGHTED, VISIBLE, (35 / 72, 11 / 24, 5 / 8)),
    (importance, SLOTTED, VISIBLE, ((1 / 4 + 1 / 6 + 1 / 11) / 3, (2 / 6 + 2 / 11) / 2, 5 / 11)),
    (raw_importance, SIGMOIDAL, VISIBLE, (1 / 2, 1 / 4, 3 / 4)),
    (importance, SIGMOIDAL, VISIBLE, ((1 + 2 / 3 + 1 / 3) / 3, (1 / 3 + 1 / 6) / 2, 1 / 2)),
    (raw_importance, SIGNED, VISIBLE, (1.0, -1.0, 2.0)),
    (importance, SIGNED, VISIBLE, ((1 + 1 / 2 + 1 / 4) / 3, (1 / 2 + 1 / 4) / 2, 1 / 2)),
    (importance, ZEROS, VISIBLE, (0.0, 0.0, 1.0)),  # a row of zero weights gives no key importance
    (importance, BANDED, VISIBLE, ((1 + 1 / 3) / 2, (2 / 3 + 2 / 7) / 2, 5 / 7)),
    (importance, BANDED, PAPER, ((1 + 1 / 3) / 3, (2 / 3 + 2 / 7) / 2, 5 / 7)),
    (importance, PREFIXED, VISIBLE, (FIRST, (2 / 3 + 2 / 3 + 2 / 8) / 3, 5 / 8)),
    (importance, PREFIXED, PAPER, (FIRST, (2 / 3 + 2 / 8) / 2, 5 / 8)),
    (importance, BLIND, VISIBLE, (torch.nan, (1 + 2 / 7) / 2, 5 / 7)),
    (uniform_importance, BLIND, VISIBLE, (torch.nan, (1 + 1 / 2) / 2, 1 / 2)),
    (uniform_importance, BANDED, VISIBLE, ((1 + 1 / 2) / 2, 1 / 2, 1 / 2)),
    (uniform_importance, ONE_SLOT, VISIBLE, (13 / 36, (1 / 3 + 1 / 4) / 2, 1 / 4)),
    (uniform_importance, PREFIXED, VISIBLE, (4 / 9, 4 / 9, 1 / 3)),
    (uniform_importance, PREFIXED, PAPER, (4 / 9, (1 / 2 + 1 / 3) / 2, 1 / 3)),
    (uniform_importance, PREFIXED, RELEASED, (4 / 9, (1 / 2 + 1 / 2 + 1 / 3) / 2, 1 / 3)),
]


@pytest.mark.parametrize(("read", "call", "convention", "expected"), BY_HAND)
def test_importances_and_nulls_worked_by_hand(read, call, convention, expected):
    keys = torch.tensor([key for key in (2, 0, 1) if expected[key] == expected[key]])  # nan: nobody sees the key
    by_hand(read(call, keys, convention), *(expected[key] for key in keys))


@pytest.mark.parametrize(
    ("read", "call", "expected"),
    [
        (slot_importance, WEIGHTED, 0.0),
        (slot_importance, SLOTTED, (3 / 4 + 3 / 6 + 3 / 11) / 3),
        (uniform_slot_importance, ONE_SLOT, 13 / 36),
        (uniform_slot_importance, WEIGHTED, 0.0),
        (off_sequence, WEIGHTED, 0.0),
        (off_sequence, SLOTTED, (3 / 4 + 3 / 6 + 3 / 11) / 3),
        (off_sequence, SIGMOIDAL, 1 - (1 / 2 + 3 / 4 + 3 / 2) / 3),
        (off_sequence, WEIGHTED.with_pattern(WEIGHTED.pattern() * (ALL > 0)), (1 + 1 / 3 + 1 / 8) / 3),  # a column less
    ],
)
def test_what_goes_to_slots_and_off_the_sequence_worked_by_hand(read, call, expected):
    by_hand(read(call), expected)


CONVENTIONS = (VISIBLE, PAPER, RELEASED)


@pytest.mark.parametrize(
    "name", ["causal", "more keys than one block", "fewer queries than keys", "key slot", "linear"]
)
def test_conventions_agree_under_a_causal_mask(name):
    call = CALLS[name]
    visible, paper, released = (importance(call, call.keys, convention) for convention in CONVENTIONS)
    torch.testing.assert_close(paper, visible)
    torch.testing.assert_close(released, visible, rtol=2**-7, atol=2**-9)


def test_the_release_divides_a_prefix_by_its_queries_from_the_key_on():
    released = importance(PREFIXED, ALL, RELEASED)
    torch.testing.assert_close(released[0, 0, 1].item(), (2 / 3 + 2 / 3 + 2 / 8) / 2, rtol=0, atol=2**-8)


@pytest.mark.parametrize("call", [odd(64, 64), odd(64, 64, mask=band(64, 7))], ids=["causal", "window"])
def test_the_release_divides_and_sums_in_bfloat16(call):
    expected = (call.pattern().bfloat16() / torch.arange(64, 0, -1).bfloat16()).sum(-2)
    assert raw_importance(call, call.keys, RELEASED).equal(expected.float())
    some = torch.tensor([0, 5, 63])
    assert raw_importance(call, some, RELEASED).equal(expected.float()[..., some])


@pytest.mark.parametrize(("alpha", "is_sink"), [(0.2996, False), (0.301, False), (0.303, True)])
def test_in_the_release_an_importance_exceeds_its_epsilon_from_0_302_on(alpha, is_sink):
    preset, weights = PRESETS["released-own-models"], torch.full((2, 6, 64, 64), (1 - alpha) / 63)
    weights[..., 0] = alpha
    every = replace(odd(64, 64), mask=torch.ones(1, 1, 64, 64, dtype=torch.bool))
    found = importance(every.with_pattern(weights), ALL[:1], preset.convention)
    assert (found.bfloat16() > 0.3).all() == is_sink  # the release's own comparison
    assert sink_rate(found, preset.epsilon).tolist() == [is_sink] * 2


def test_the_proxy_of_a_pattern_that_was_set_divides_its_rows_by_their_sum():
    call, weights = odd(5, 5), torch.full((2, 6, 5, 5), 0.1).tril()
    weights[..., 0] = -0.3
    set_so = call.with_pattern(weights)
    alpha = (1 + 3 / 4 + 3 / 5 + 3 / 6 + 3 / 7) / 5
    torch.testing.assert_close(importance(set_so, ALL[:1]), torch.full((2, 6, 1), alpha))
    torch.testing.assert_close(raw_importance(set_so, ALL[:1]), torch.full((2, 6, 1), -0.3))
    whole = call.with_pattern(call.pattern())
    assert importance(whole, ALL[:1]).equal(raw_importance(whole, ALL[:1]))


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("name", ["causal", "sigmoid", "linear", "key slot"])
def test_importances_are_the_proxys_beside_the_raw_ones(name, convention):
    call = CALLS[name]
    both = importance_and_raw(call, ALL, convention)
    assert both[:, 0].equal(importance(call, ALL, convention))
    assert both[:, 1].equal(raw_importance(call, ALL, convention))


@every_call
def test_attention_off_the_sequence_is_one_minus_the_dense_row_sum(call):
    expected = 1 - call.pattern()[..., -len(call.keys) :].sum(-1).mean(-1)
    torch.testing.assert_close(off_sequence(call), expected, rtol=1e-4, atol=1e-5)


def test_queries_that_cannot_see_the_first_key_are_counted_at_most_over_heads():
    assert hidden_queries(odd()).tolist() == hidden_queries(odd(5, 11)).tolist() == [0, 0]
    assert hidden_queries(odd(mask=band(13, 3))).tolist() == [10, 10]
    widths = torch.tensor([[2, 13, 5, 13, 13, 13], [13, 11, 13, 13, 12, 13]])
    mask = torch.cat([torch.cat([band(13, width) for width in row.tolist()], 1) for row in widths])
    assert hidden_queries(odd(mask=mask)).tolist() == [11, 2]
    assert hidden_queries(odd(5, 11, mask=band(11, 8)[:, :, 6:])).tolist() == [3, 3]
