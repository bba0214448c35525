import math

import pytest
import torch

from sinkinterp.metrics import spectrum


def test_entropy_and_anisotropy_worked_by_hand():
    x = torch.tensor([[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]])  # s^2 / sum: .64 and .36
    torch.testing.assert_close(spectrum.anisotropy(x), torch.tensor(0.64))
    torch.testing.assert_close(
        spectrum.matrix_entropy(x), torch.tensor(-0.64 * math.log2(0.64) - 0.36 * math.log2(0.36))
    )
    torch.testing.assert_close(spectrum.matrix_entropy(torch.eye(8)), torch.tensor(3.0))
    torch.testing.assert_close(spectrum.matrix_entropy(torch.ones(5, 7)), torch.tensor(0.0), rtol=0, atol=1e-5)


def test_the_null_keeps_norms_and_draws_directions():
    x = torch.randn(2, 7, 301) * torch.arange(1.0, 8)[:, None]
    drawn = spectrum.with_random_directions(x)
    torch.testing.assert_close(drawn.norm(dim=-1), x.norm(dim=-1))
    assert torch.equal(drawn, spectrum.with_random_directions(x)) and not torch.equal(
        drawn, spectrum.with_random_directions(x, seed=1)
    )
    one = torch.ones(1, 7, 301)  # seven equal rows are one direction; seven random ones are nearly orthogonal
    assert spectrum.matrix_entropy(one) < 1e-4 and spectrum.matrix_entropy(spectrum.with_random_directions(one)) > 2.7


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
def test_rank_anisotropy_and_entropy_are_those_of_the_singular_values(draw):
    x = draw()
    energies = torch.linalg.svdvals(x.double()).square()
    expected = energies.sum(-1) / energies.amax(-1)
    torch.testing.assert_close(spectrum.stable_rank(x), expected.float(), rtol=1e-5, atol=0)
    torch.testing.assert_close(spectrum.anisotropy(x), 1 / expected.float(), rtol=1e-5, atol=0)
    shares = energies / energies.sum(-1, keepdim=True)
    torch.testing.assert_close(
        spectrum.matrix_entropy(x), torch.special.entr(shares).sum(-1).float() / math.log(2), rtol=0, atol=1e-4
    )


def test_a_matrix_of_zeros_has_no_stable_rank_and_leaves_its_neighbours_as_they_are():
    x = torch.randn(5, 7, 3)
    x[2] = 0
    ranks = spectrum.stable_rank(x)
    for found in (ranks, spectrum.anisotropy(x), spectrum.matrix_entropy(x)):
        assert found.isnan().tolist() == [False, False, True, False, False]
    torch.testing.assert_close(ranks[3:], spectrum.stable_rank(x[3:]))


def test_nop_and_broadcast_worked_by_hand():
    ratios = torch.tensor([[0.0, 0.19, 0.2, 0.79], [0.8, 1.0, 1.25, 1.26]])
    assert spectrum.is_nop(ratios).tolist() == [[True, True, False, False], [False] * 4]
    assert spectrum.is_broadcast(ratios).tolist() == [[False] * 4, [True, True, True, False]]
