from dataclasses import replace

import pytest
import torch

from sinkinterp.attention.slots import EvenRow, FirstAxis, KeySlot, LearnedRow, LogitSlot, NoSlots, SinkLogit, ZeroRow
from sinkinterp.spec import Dims

DIMS = Dims(21, 3, 7, 5)


def test_fixed_values_have_the_length_they_say_along_the_axis_they_say():
    first, even = (KeySlot(v=v(5.0)).build(DIMS)().value for v in (FirstAxis, EvenRow))
    assert first.shape == even.shape == (3, 1, 7)
    assert first[2, 0].tolist() == [5, 0, 0, 0, 0, 0, 0]
    torch.testing.assert_close(even, torch.full((3, 1, 7), 5 / 7**0.5))
    assert [row.build(DIMS).norm().item() for row in (FirstAxis(), EvenRow())] == pytest.approx([1, 1])


def test_only_the_trained_dimensions_of_a_row_are_not_zero_and_learn():
    slots = KeySlot(LearnedRow(dims=2)).build(DIMS)
    key = slots().key
    assert key[..., :2].ne(0).all() and key[..., 2:].eq(0).all()
    assert {name: p.numel() for name, p in slots.named_parameters() if p.requires_grad} == {"key": 6}


def test_a_shared_row_is_that_of_every_head_and_others_are_their_own():
    shared, own = KeySlot(LearnedRow(shared=True)).build(DIMS)().key, KeySlot().build(DIMS)().key
    assert shared.shape == (3, 1, 7) and shared[0].equal(shared[1]) and shared[0].equal(shared[2])
    assert not own[0].equal(own[1])


def test_a_logit_slot_scores_every_query_alike_and_has_one_number_per_head():
    slots = LogitSlot().build(DIMS)
    assert slots.logit.shape == (3,)
    scores = slots().scores(torch.randn(2, 3, 5, 7), 0.3)
    assert scores.equal(slots.logit[None, :, None, None].expand(2, 3, 5, 1))


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
    assert NoSlots().build(DIMS)() is None
    assert not any(p.requires_grad for p in KeySlot(ZeroRow(), ZeroRow()).build(DIMS).parameters())


@pytest.mark.parametrize("std", [0.02, 3.0])
def test_what_is_trained_is_drawn_around_zero_with_the_deviation_it_says(std):
    dims = Dims(4001 * 7, 4001, 7, 5)
    for drawn in (LearnedRow(std=std).build(dims), LogitSlot(std).build(dims).logit):
        assert drawn.std().item() == pytest.approx(std, rel=0.06)
        assert abs(drawn.mean().item()) < 0.08 * std
    assert (LearnedRow().std, LogitSlot().std) == (0.02, 0.02)
