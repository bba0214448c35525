import pytest
import torch

from sinkinterp.metrics.writes import is_broadcast, is_nop, stable_rank


def test_stable_rank_worked_by_hand():
    ranks = stable_rank(torch.tensor([[[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]], [[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]]]))
    torch.testing.assert_close(ranks, torch.tensor([25 / 16, 1.0]))
    torch.testing.assert_close(stable_rank(torch.tensor([[3.0, 0.0], [0.0, 4.0]])), torch.tensor(25 / 16))


def test_stable_rank_is_found_from_the_gram_matrix_too():
    x = torch.randn(2, 3, 7, 5)
    largest = torch.linalg.eigvalsh(x.mT @ x)[..., -1]
    torch.testing.assert_close(stable_rank(x), (x.mT @ x).diagonal(dim1=-2, dim2=-1).sum(-1) / largest)
    torch.testing.assert_close(stable_rank(x.mT * 11), stable_rank(x))


def one_direction_and_noise(noise, *shape):
    """Matrices of equal rows, and noise."""
    return torch.randn(*shape[:-2], 1, shape[-1]).expand(shape) + noise * torch.randn(shape)


STACKS = {
    "square": lambda: torch.randn(2, 3, 61, 61),
    "long": lambda: torch.randn(5, 301, 13),
    "wide": lambda: torch.randn(5, 13, 301),
    "one row": lambda: torch.randn(5, 1, 7),
    "nearly one direction": lambda: one_direction_and_noise(0.01, 7, 31, 17),
    "one direction and noise": lambda: one_direction_and_noise(1.0, 7, 31, 17),
    "two equal singular values": lambda: torch.diag(torch.tensor([3.0, 3.0, 1.0, 0.1])).expand(3, 4, 4),
    "nearly equal singular values": lambda: torch.eye(61) + 1e-4 * torch.randn(3, 61, 61),
    "large": lambda: one_direction_and_noise(0.3, 3, 17, 5) * 1e6,
    "small": lambda: one_direction_and_noise(0.3, 3, 17, 5) * 1e-6,
}


@pytest.mark.parametrize("draw", STACKS.values(), ids=STACKS)
def test_stable_rank_is_that_of_the_singular_values(draw):
    x = draw()
    energies = torch.linalg.svdvals(x.double()).square()
    expected = energies.sum(-1) / energies.amax(-1)
    torch.testing.assert_close(stable_rank(x), expected.float(), rtol=1e-5, atol=0)


def test_a_matrix_of_zeros_has_no_stable_rank_and_leaves_its_neighbours_as_they_are():
    x = torch.randn(5, 7, 3)
    x[2] = 0
    ranks = stable_rank(x)
    assert ranks.isnan().tolist() == [False, False, True, False, False]
    torch.testing.assert_close(ranks[3:], stable_rank(x[3:]))


def test_nop_and_broadcast_worked_by_hand():
    ratios = torch.tensor([[0.0, 0.19, 0.2, 0.79], [0.8, 1.0, 1.25, 1.26]])
    assert is_nop(ratios).tolist() == [[True, True, False, False], [False] * 4]
    assert is_broadcast(ratios).tolist() == [[False] * 4, [True, True, True, False]]
