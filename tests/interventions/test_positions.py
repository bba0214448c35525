from functools import partial

import pytest
import torch
from refusals import refused

from sinkinterp.attention.shapes import ModelShape
from sinkinterp.attention.sites import Edit
from sinkinterp.interventions import SwapPositions
from sinkinterp.interventions.attention_layers import Evict
from sinkinterp.interventions.changes import RemovePosition, ReplacePosition

IDS = torch.arange(7)
SHAPE = ModelShape(3, (0, 1, 2), 5, 5, 2, 11, 97)


@pytest.mark.parametrize(("edit", "rows"), [
    (SwapPositions(0, 4), [4, 1, 2, 3, 0, 5, 6]), (ReplacePosition(0, 4), [4, 1, 2, 3, 4, 5, 6]),
    (Edit(), [0, 1, 2, 3, 4, 5, 6]),
], ids=str)  # fmt: skip
def test_other_positions_by_hand(edit, rows):
    assert edit.position_ids(IDS).tolist() == rows and IDS.equal(torch.arange(7))


def test_a_removed_position_adds_nothing_and_the_others_what_they_did():
    x = torch.randn(1, 7, 3)
    before = x.clone()
    removed = RemovePosition([2, 5]).position_embedding(x)
    assert removed[:, [2, 5]].eq(0).all() and removed[:, [0, 1, 3, 4, 6]].equal(x[:, [0, 1, 3, 4, 6]])
    assert RemovePosition().position_embedding(x).eq(0).all() and x.equal(before)


@pytest.mark.parametrize("edit", [SwapPositions, ReplacePosition])
def test_positions_that_change_nothing_or_do_not_exist_are_refused(edit):
    refused(lambda: edit(3, 3))
    for first, second, absent in ((-1, 3, -1), (0, 7, 7)):
        refused(partial(edit(first, second).check, SHAPE, 7), f"position {absent}")
    edit(0, 6).check(SHAPE, 7)


@pytest.mark.parametrize(("queries", "keys"), [(11, 11), (3, 11), (5, 13)])
@pytest.mark.parametrize(("window", "sinks"), [(5, 2), (4, 0), (1, 0), (7, 1), (20, 3)])
def test_a_query_sees_the_sinks_and_the_last_keys_of_its_window(make_call, queries, keys, window, sinks):
    seen = Evict(window, sinks).call(make_call(queries=queries, keys=keys)).allowed()[0, 0]
    for row, query in enumerate(range(keys - queries, keys)):
        recent = range(max(0, query - (window - sinks) + 1), query + 1)
        expected = sorted({*range(min(sinks, query + 1)), *recent})
        assert seen[row].nonzero().flatten().tolist() == expected


def test_a_mask_that_was_there_still_hides_its_pairs(make_call):
    mask = torch.rand(2, 6, 11, 11) < 0.5
    call = Evict(5, 2).call(make_call(mask=mask))
    assert call.mask.equal(mask & Evict(5, 2).call(make_call(mask=torch.ones_like(mask))).mask)


@pytest.mark.parametrize(("window", "sinks"), [(3, 3), (3, 4), (0, 0), (3, -1)])
def test_a_cache_without_room_for_a_recent_token_is_refused(window, sinks):
    refused(lambda: Evict(window, sinks), "sinks")
