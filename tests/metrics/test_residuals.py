import math

import pytest
import torch
from einops import rearrange

from sinkinterp.metrics import residuals

SMALL = torch.tensor([[[1.0, -2.0, 3.0]], [[0.5, 0.25, -8.0]]])  # 2 sequences, 1 token, 3 channels


def test_peaks_worked_by_hand():
    assert residuals.peak(SMALL).tolist() == [3.0, 8.0]
    assert residuals.peak_over_median(SMALL).tolist() == [1.5, 16.0]
    lower_of_two = torch.tensor([[[1.0, -2.0], [4.0, 8.0]]])
    assert residuals.peak_over_median(lower_of_two).tolist() == [4.0]
    assert residuals.peak_over_median(torch.tensor([[[0.0, 0.0, 5.0]]])).tolist() == [torch.inf]


def test_medians_are_taken_per_sequence():
    x = torch.ones(2, 3, 5)
    x[:, 0, 0], x[0, 1:] = 2000.0, 10.0
    assert residuals.is_massive(x).nonzero().tolist() == [[1, 0, 0]]
    assert residuals.median_size(x.to("meta")).shape == (2,)  # as an accelerator computes it


def test_all_entries_have_channels_before_positions_since_reports_pad_positions():
    x = torch.randn(3, 5, 7)
    assert residuals.ALL_ENTRIES.read(x).equal(rearrange(x, "sequence pos channel -> sequence channel pos"))


@pytest.mark.parametrize("count", [1, 5, 17, 40, 17 * 13])
def test_top_entries_are_those_of_a_full_sort(count):
    x = torch.randn(3, 17, 13)
    top = residuals.top_entries(x, count)
    largest = x.flatten(1).abs().sort(descending=True)
    index = largest.indices[:, :count]
    assert top[..., 0].equal(x.flatten(1).gather(1, index))
    assert (top[..., 1] * 13 + top[..., 2]).equal(index.float())


def test_residuals_are_left_as_they_are():
    x = torch.randn(3, 5, 7)
    before = x.clone()
    for metric in residuals.METRICS:
        metric.read(x)
    assert x.equal(before)


def test_kurtosis_is_the_fourth_moment_of_the_channels_rms():
    x = torch.randn(3, 5, 7).double()
    rms = x.square().mean(1).sqrt()
    expected = (rms**4).mean(1) / (rms**2).mean(1) ** 2
    torch.testing.assert_close(residuals.kurtosis(x), expected.float())
    torch.testing.assert_close(residuals.kurtosis(x * 1e12), expected.float())
    assert expected.ge(1).all() and expected.le(7).all()


def test_half_precision_does_not_overflow():
    x = torch.full((2, 3, 5), 60000.0, dtype=torch.float16)
    torch.testing.assert_close(residuals.kurtosis(x), torch.ones(2))
    assert residuals.peak(x).dtype == torch.float32 and residuals.top_entries(x, 1).dtype == torch.float32


def test_a_lifetime_worked_by_hand():
    blocks = torch.tensor([False, False, True, True, False, True, False])
    assert residuals.lifetime(blocks) == residuals.Lifetime(2, 5, 3)
    assert residuals.lifetime(torch.tensor([True])) == residuals.Lifetime(0, 0, 1)
    assert residuals.lifetime(torch.zeros(5, dtype=torch.bool)) is None


@pytest.mark.parametrize(
    ("background", "value", "n_massive"),
    [(0.01, 100.4, 1), (0.01, -100.4, 1), (0.01, 100.0, 0), (2.0, -2000.8, 1), (2.0, -1999.2, 0), (0.125, 125.0, 1)],
)
def test_an_entry_is_massive_above_100_and_from_1000_medians_on_unless_told_otherwise(background, value, n_massive):
    x = torch.full((3, 5, 7), background)
    x[1, 2, 4] = value
    assert residuals.is_massive(x).sum() == n_massive and residuals.massive_count(x).tolist() == [0, n_massive, 0]


def test_norms_are_roots_of_sums_of_squares_over_the_last_axis_only():
    x = torch.randn(2, 3, 5, 7, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(residuals.vector_norms(x), x.square().sum(-1).sqrt())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_norms_of_half_precision_neither_overflow_nor_lose_digits(dtype):
    x = torch.full((3, 7001), 1000.0, dtype=dtype)
    assert residuals.vector_norms(x).dtype == torch.float32
    torch.testing.assert_close(residuals.vector_norms(x), torch.full((3,), 1000 * 7001**0.5), rtol=1e-5, atol=0)


@pytest.mark.parametrize("position", range(7))
def test_a_ratio_compares_one_position_with_the_mean_of_the_others(position):
    values = torch.rand(2, 3, 5, 7, generator=torch.Generator().manual_seed(0)) + 0.1
    others = [p for p in range(7) if p != position]
    expected = values[..., position] / values[..., others].mean(-1)
    torch.testing.assert_close(residuals.norm_ratio(values, position), expected)


@pytest.mark.parametrize("position", [0, 2])
def test_a_ratio_of_padded_norms_is_that_without_the_padding(position):
    values = torch.rand(2, 3, 7, generator=torch.Generator().manual_seed(0)) + 0.1
    padded = torch.nn.functional.pad(values, (0, 4), value=torch.nan)
    torch.testing.assert_close(residuals.norm_ratio(padded, position), residuals.norm_ratio(values, position))
    assert residuals.norm_ratio(padded, 8).isnan().all()


@pytest.mark.parametrize(
    ("ratio", "found"),
    [
        ([1.0, 1.5, 30.0, 45.0, 3.0, 1.0], residuals.Steps(2, 4)),  # half way, on a scale of factors: 8.2
        ([1.0, 15.0, 5.0, 5.0, 7.0, 16.0, 9.0, 4.5, 3.8], residuals.Steps(1, 8)),  # as Gemma 3: it dips
        ([1.0, 9.0, 1.0, 27.0, 9.0, 1.0], residuals.Steps(3, 5)),  # the fall before the largest rise does not count
        ([1.0, 8.0, 8.0, 5.0], residuals.Steps(1, None)),  # stays above 2.8
        ([1.0, 1.0, 8.0], residuals.Steps(2, None)),  # rises at the end
        ([1.0, 2.0, 1.0], residuals.Steps(1, 2)),  # a factor of just `least` is a step, either way
        ([1.0, 4.0, 2.0, 1.0], residuals.Steps(1, 3)),  # the geometric mean itself is not yet down
        ([1.0, 1.9, 3.6], None),  # no step is as large
        ([9.0, 3.0, 1.0], None),
        ([5.0], None),
    ],
)
def test_steps_worked_by_hand(ratio, found):
    assert residuals.steps(torch.tensor(ratio)) == found


def test_a_smaller_threshold_finds_smaller_steps():
    assert residuals.steps(torch.tensor([1.0, 1.9, 3.6, 1.5]), least=1.5) == residuals.Steps(1, 3)


def test_the_cosine_to_the_first_token_worked_by_hand():
    x = torch.tensor([[[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0], [3.0, 4.0], [0.0, 0.0]]])
    torch.testing.assert_close(residuals.cosine_to(x), torch.tensor([[1.0, 0.0, -1.0, 0.6, 0.0]]))
    torch.testing.assert_close(residuals.cosine_to(x.half() * 1e4), residuals.cosine_to(x))


def test_secondary_sinks_worked_by_hand():
    cosines = torch.zeros(1, 5, 4)
    cosines[0, :, 0] = 1
    cosines[0, 0, 1] = 1  # before the first token is long
    cosines[0, 2:4, 2] = -0.95  # the other way round counts too
    cosines[0, 3:, 3] = torch.tensor([0.91, 0.99])  # once while the first token is long, once behind
    found = residuals.secondary_sinks(cosines, residuals.Steps(1, 4))
    assert [x.tolist() for x in found] == [[[-1, -1, 2, 3]], [[0, 0, 2, 1]]]
    assert residuals.secondary_sinks(cosines, residuals.Steps(1, None))[1].tolist() == [[0, 0, 2, 2]]
    assert residuals.secondary_sinks(cosines, residuals.Steps(1, 4), position=2)[0].tolist() == [[-1, -1, -1, 3]]


def test_entropy_and_anisotropy_worked_by_hand():
    x = torch.tensor([[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]])  # s^2 / sum: .64 and .36
    torch.testing.assert_close(residuals.anisotropy(x), torch.tensor(0.64))
    entropy = -0.64 * math.log2(0.64) - 0.36 * math.log2(0.36)
    torch.testing.assert_close(residuals.matrix_entropy(x), torch.tensor(entropy))
    torch.testing.assert_close(residuals.matrix_entropy(torch.eye(8)), torch.tensor(3.0))
    torch.testing.assert_close(residuals.matrix_entropy(torch.ones(5, 7)), torch.tensor(0.0), rtol=0, atol=1e-5)


def test_the_null_keeps_norms_and_draws_directions():
    x = torch.randn(2, 7, 301) * torch.arange(1.0, 8)[:, None]
    drawn = residuals.with_random_directions(x)
    torch.testing.assert_close(drawn.norm(dim=-1), x.norm(dim=-1))
    assert torch.equal(drawn, residuals.with_random_directions(x)) and not torch.equal(
        drawn, residuals.with_random_directions(x, seed=1)
    )
    one = torch.ones(1, 7, 301)  # seven equal rows are one direction; seven random ones are nearly orthogonal
    assert (
        residuals.matrix_entropy(one) < 1e-4 and residuals.matrix_entropy(residuals.with_random_directions(one)) > 2.7
    )


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
    torch.testing.assert_close(residuals.stable_rank(x), expected.float(), rtol=1e-5, atol=0)
    torch.testing.assert_close(residuals.anisotropy(x), 1 / expected.float(), rtol=1e-5, atol=0)
    shares = energies / energies.sum(-1, keepdim=True)
    torch.testing.assert_close(
        residuals.matrix_entropy(x), torch.special.entr(shares).sum(-1).float() / math.log(2), rtol=0, atol=1e-4
    )


def test_a_matrix_of_zeros_has_no_stable_rank_and_leaves_its_neighbours_as_they_are():
    x = torch.randn(5, 7, 3)
    x[2] = 0
    ranks = residuals.stable_rank(x)
    for found in (ranks, residuals.anisotropy(x), residuals.matrix_entropy(x)):
        assert found.isnan().tolist() == [False, False, True, False, False]
    torch.testing.assert_close(ranks[3:], residuals.stable_rank(x[3:]))


def test_nop_and_broadcast_worked_by_hand():
    ratios = torch.tensor([[0.0, 0.19, 0.2, 0.79], [0.8, 1.0, 1.25, 1.26]])
    assert residuals.is_nop(ratios).tolist() == [[True, True, False, False], [False] * 4]
    assert residuals.is_broadcast(ratios).tolist() == [[False] * 4, [True, True, True, False]]
