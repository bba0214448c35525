import torch

from sinkinterp.attention.masks import Causal, Prefix, Window

ROW, COLUMN = torch.arange(5)[:, None], torch.arange(5)[None, :]


def test_causal_is_the_lower_triangle():
    assert Causal().allows(ROW, COLUMN).equal(torch.ones(5, 5).tril().bool())


def test_a_causal_window_is_a_band_as_wide_as_it_says():
    band = (Causal() & Window(2)).allows(ROW, COLUMN)
    assert band.sum(1).tolist() == [1, 2, 2, 2, 2]
    assert band.equal(torch.ones(5, 5).tril().triu(-1).bool())


def test_prefix_keys_are_open_to_every_query():
    assert (Causal() | Prefix(3)).allows(ROW, COLUMN).sum(1).tolist() == [3, 3, 3, 4, 5]
