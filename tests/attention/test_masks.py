"""Which keys a query may attend to: shortcuts against the dense mask."""

import pytest
import torch

from sinkinterp.attention.masks import Causal, Prefix, Visibility, Window

CPU = torch.device("cpu")
VISIBILITIES = {
    "causal": lambda: Visibility(11, 11, CPU),
    "fewer queries than keys": lambda: Visibility(5, 13, CPU),
    "mask": lambda: Visibility(7, 13, CPU, torch.rand(2, 3, 7, 13) < 0.1),
}
every_visibility = pytest.mark.parametrize("make", VISIBILITIES.values(), ids=VISIBILITIES)
RUNS = (slice(None), slice(0, 1), slice(2, 4), slice(4, 5))


@every_visibility
def test_counts_of_visible_keys_and_of_watchers_are_those_of_the_dense_mask(make):
    visibility = make()
    keys = torch.tensor([4, 0, 9])
    assert visibility.n_visible.equal(visibility.allowed().sum(-1))
    assert visibility.watchers(keys).equal(visibility.allowed()[..., keys].sum(2))
    for rows in RUNS:
        assert visibility.allowed(keys, rows).equal(visibility.allowed()[..., rows, keys])
        assert visibility.allowed(rows=rows).equal(visibility.allowed()[..., rows, :])


ROW, COLUMN = torch.arange(5)[:, None], torch.arange(5)[None, :]


def test_causal_is_the_lower_triangle():
    assert Causal().allows(ROW, COLUMN).equal(torch.ones(5, 5).tril().bool())


def test_a_causal_window_is_a_band_as_wide_as_it_says():
    band = (Causal() & Window(2)).allows(ROW, COLUMN)
    assert band.sum(1).tolist() == [1, 2, 2, 2, 2]
    assert band.equal(torch.ones(5, 5).tril().triu(-1).bool())


def test_prefix_keys_are_open_to_every_query():
    assert (Causal() | Prefix(3)).allows(ROW, COLUMN).sum(1).tolist() == [3, 3, 3, 4, 5]
