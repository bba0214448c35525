from collections import Counter

import torch
from hypothesis import example, given, strategies as st

from sinkinterp.data.draws import MAX_STRETCHES, Split, stretches

NUMBERS = st.integers(2, 400)
SHARES = st.floats(0.01, 0.99)


@given(NUMBERS, SHARES, SHARES)
def test_no_held_out_chunk_is_trained_on_and_none_is_lost(chunks, held_out, share):
    split = Split.of(chunks, held_out, 1.0)
    assert sorted([*split.training.tolist(), *split.held_out.tolist()]) == list(range(chunks))
    assert len(split.held_out) >= 1 and len(Split.of(chunks, held_out, share).training) >= 1


@given(NUMBERS, SHARES, SHARES, SHARES)
def test_a_smaller_share_is_nested_in_a_larger_one_beside_the_same_held_out_chunks(chunks, held_out, a, b):
    small, large = (Split.of(chunks, held_out, share) for share in sorted((a, b)))
    assert small.training.equal(large.training[: len(small.training)])
    assert small.held_out.equal(large.held_out)


def test_a_split_takes_the_shares_it_is_asked_for():
    split = Split.of(1000, 0.1, 0.25)
    assert (len(split.training), len(split.held_out)) == (225, 100)


@example(1873, 0.98828125)
@given(st.integers(2, 5000), SHARES)
def test_stretches_lie_apart_at_the_ends_of_equal_parts_and_hold_as_many_chunks_as_are_asked_for(chunks, held_out):
    asked = min(chunks - 1, max(1, round(held_out * chunks)))
    found = stretches(chunks, asked)
    assert 1 <= len(found) <= MAX_STRETCHES and found[-1].stop == chunks and found[0].start >= 0
    assert len({i for stretch in found for i in stretch}) == sum(map(len, found)) == asked
    assert len(found) == 1 or min(map(len, found)) >= 64


def test_stretches_of_a_small_corpus_worked_by_hand():
    assert stretches(11, 3) == [range(8, 11)]
    assert stretches(1000, 129) == [range(436, 500), range(935, 1000)]


def test_what_is_trimmed_from_a_stretch_is_in_neither_part():
    split = Split.of(1000, 0.129, 1.0, lambda stretch: stretch[2:-3])
    assert sorted(split.held_out.tolist()) == [*range(438, 497), *range(937, 997)]
    assert sorted(split.training.tolist()) == [*range(436), *range(500, 935)]


def test_stretches_that_would_be_trimmed_away_are_kept_whole():
    assert Split.of(11, 0.3, 1.0, lambda stretch: range(0)).held_out.equal(Split.of(11, 0.3, 1.0).held_out)


@given(st.integers(2, 60), st.integers(1, 130), st.integers(1, 5))
def test_every_chunk_is_drawn_once_an_epoch_however_large_the_batch(chunks, n, epochs):
    split = Split.of(chunks, 0.2, 1.0)
    size = len(split.training)
    drawn = torch.cat([split.batch(n, 5, step) for step in range(1, epochs * size // n + 2)]).tolist()
    assert len(drawn) >= epochs * size
    for epoch in range(epochs):
        assert Counter(drawn[epoch * size : (epoch + 1) * size]) == Counter(split.training.tolist())


def test_the_order_is_another_one_in_each_epoch_and_for_each_seed():
    split = Split.of(101, 0.1, 1.0)
    size = len(split.training)
    orders = [split.batch(size, seed, step) for seed, step in ((0, 1), (0, 2), (1, 1))]
    assert not any(a.equal(b) for i, a in enumerate(orders) for b in orders[:i])
    assert split.batch(size, 0, 2).equal(orders[1])
