import pytest
import torch

from sinkinterp.errors import InputError
from sinkinterp.interventions.edit import Edit
from sinkinterp.interventions.positions import ReplacePosition, SwapPositions

IDS = torch.arange(7)


def test_a_swap_exchanges_two_rows_by_hand():
    assert SwapPositions(0, 4).position_ids(IDS).tolist() == [4, 1, 2, 3, 0, 5, 6]


def test_a_replacement_leaves_the_second_row_in_place():
    assert ReplacePosition(0, 4).position_ids(IDS).tolist() == [4, 1, 2, 3, 4, 5, 6]


def test_a_swap_is_its_own_inverse_and_symmetric():
    assert SwapPositions(2, 5).position_ids(SwapPositions(5, 2).position_ids(IDS)).equal(IDS)


def test_edits_leave_their_input_alone():
    SwapPositions(0, 4).position_ids(IDS), ReplacePosition(0, 4).position_ids(IDS)
    assert IDS.equal(torch.arange(7))


def test_the_base_edit_changes_nothing():
    assert Edit().position_ids(IDS).equal(IDS)


@pytest.mark.parametrize("edit", [SwapPositions, ReplacePosition])
def test_positions_that_change_nothing_or_do_not_exist_are_refused(edit):
    with pytest.raises(InputError, match="changes nothing"):
        edit(3, 3)
    with pytest.raises(InputError, match="count from 0"):
        edit(-1, 3)
    with pytest.raises(InputError, match="outside the sequence; its last position is 6"):
        edit(0, 7).position_ids(IDS)
