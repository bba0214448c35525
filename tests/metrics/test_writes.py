import pytest
import torch

from sinkinterp.errors import InputError
from sinkinterp.metrics.writes import is_broadcast, is_nop, stable_rank


def test_stable_rank_worked_by_hand():
    ranks = stable_rank(torch.tensor([[[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]], [[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]]]))
    torch.testing.assert_close(ranks, torch.tensor([25 / 16, 1.0]))


def test_stable_rank_is_found_from_the_gram_matrix_too():
    x = torch.randn(2, 3, 7, 5)
    largest = torch.linalg.eigvalsh(x.mT @ x)[..., -1]
    torch.testing.assert_close(stable_rank(x), (x.mT @ x).diagonal(dim1=-2, dim2=-1).sum(-1) / largest)
    torch.testing.assert_close(stable_rank(x.mT * 11), stable_rank(x))


def test_nop_and_broadcast_worked_by_hand():
    ratios = torch.tensor([[0.0, 0.19, 0.2, 0.79], [0.8, 1.0, 1.25, 1.26]])
    assert is_nop(ratios).tolist() == [[True, True, False, False], [False] * 4]
    assert is_broadcast(ratios).tolist() == [[False] * 4, [True, True, True, False]]
    assert is_nop(ratios, limit=0.5).sum() == 3
    assert is_broadcast(ratios, low=0.5, high=2.0).sum() == 5


@pytest.mark.parametrize("limit", [0.0, 1.0, float("nan")])
def test_a_limit_that_no_nop_could_have_is_refused(limit):
    with pytest.raises(InputError, match="between 0 and 1"):
        is_nop(torch.ones(2), limit)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.25), (1.1, 1.25), (0.5, 0.9)])
def test_a_broadcast_range_without_one_is_refused(low, high):
    with pytest.raises(InputError, match="either side of 1"):
        is_broadcast(torch.ones(2), low, high)
