import pytest
import torch

from sinkinterp.attention.masks import Causal, Prefix, Visibility, Window

ROW, COLUMN = torch.arange(5)[:, None], torch.arange(5)[None, :]


def test_causal_is_the_lower_triangle():
    assert Causal().allows(ROW, COLUMN).equal(torch.ones(5, 5).tril().bool())


def test_a_causal_window_is_a_band_as_wide_as_it_says():
    band = (Causal() & Window(2)).allows(ROW, COLUMN)
    assert band.sum(1).tolist() == [1, 2, 2, 2, 2]
    assert band.equal(torch.ones(5, 5).tril().triu(-1).bool())


def test_prefix_keys_are_open_to_every_query():
    assert (Causal() | Prefix(3)).allows(ROW, COLUMN).sum(1).tolist() == [3, 3, 3, 4, 5]


@pytest.mark.parametrize("inference", [False, True])
def test_regions_follow_keys_that_are_changed_in_place(inference):
    with torch.inference_mode(inference):
        keys, visibility = torch.tensor([2, 3, 4]), Visibility(7, 7, torch.device("cpu"))
        before = visibility.regions(keys)
        keys += 1
        assert (before, visibility.regions(keys)) == ((slice(2, 4), slice(4, None)), (slice(3, 5), slice(5, None)))
