"""The mask of a rolling cache, written out."""

import pytest
import torch
from refusals import refused

from sinkinterp.interventions import Evict


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
