import pytest
import torch

from sinkinterp.attention.shapes import ModelShape
from sinkinterp.errors import InputError
from sinkinterp.interventions import RemovePosition, ReplacePosition, ShiftPositions, SwapPositions
from sinkinterp.interventions.edit import Edit

IDS = torch.arange(7)
SHAPE = ModelShape(3, (0, 1, 2), 5, 5, 2, 11, 97)


def test_a_swap_exchanges_two_rows_by_hand():
    assert SwapPositions(0, 4).position_ids(IDS).tolist() == [4, 1, 2, 3, 0, 5, 6]


def test_a_replacement_leaves_the_second_row_in_place():
    assert ReplacePosition(0, 4).position_ids(IDS).tolist() == [4, 1, 2, 3, 4, 5, 6]


def test_a_shift_leaves_a_gap_before_it():
    assert ShiftPositions(5).position_ids(IDS).tolist() == [0, 6, 7, 8, 9, 10, 11]
    assert ShiftPositions(2, start=4).position_ids(IDS).tolist() == [0, 1, 2, 3, 6, 7, 8]


def test_a_swap_is_its_own_inverse_and_symmetric():
    assert SwapPositions(2, 5).position_ids(SwapPositions(5, 2).position_ids(IDS)).equal(IDS)


def test_edits_leave_their_input_alone():
    for edit in (SwapPositions(0, 4), ReplacePosition(0, 4), ShiftPositions(3)):
        edit.position_ids(IDS)
    x = torch.ones(1, 7, 3)
    RemovePosition([2]).position_embedding(x)
    assert IDS.equal(torch.arange(7)) and x.eq(1).all()


def test_a_removed_position_adds_nothing_and_the_others_what_they_did():
    x = torch.randn(1, 7, 3)
    removed = RemovePosition([2, 5]).position_embedding(x)
    assert removed[:, [2, 5]].eq(0).all() and removed[:, [0, 1, 3, 4, 6]].equal(x[:, [0, 1, 3, 4, 6]])
    assert RemovePosition().position_embedding(x).eq(0).all()


def test_the_base_edit_changes_nothing():
    assert Edit().position_ids(IDS).equal(IDS)


@pytest.mark.parametrize("edit", [SwapPositions, ReplacePosition])
def test_positions_that_change_nothing_or_do_not_exist_are_refused(edit):
    with pytest.raises(InputError, match="changes nothing"):
        edit(3, 3)
    with pytest.raises(InputError, match="count from 0"):
        edit(-1, 3)
    with pytest.raises(InputError, match="position 7 is outside the sequence; its last position is 6"):
        edit(0, 7).check(SHAPE, 7)
    edit(0, 6).check(SHAPE, 7)


def test_shifts_go_forward_from_a_position_that_exists():
    for by, start in ((0, 1), (-2, 1), (1, -1)):
        with pytest.raises(InputError, match="a shift is by 1 or more"):
            ShiftPositions(by, start)
    with pytest.raises(InputError, match="no position 7; this model and input have 0 to 6"):
        ShiftPositions(1, start=7).check(SHAPE, 7)


def test_all_tokens_may_be_shifted_together():
    assert ShiftPositions(2, start=0).position_ids(IDS).tolist() == [2, 3, 4, 5, 6, 7, 8]
    ShiftPositions(1, start=6).check(SHAPE, 7)
