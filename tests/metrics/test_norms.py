import pytest
import torch

from sinkinterp.metrics.residuals import Steps, norm_ratio, steps, vector_norms


def test_norms_worked_by_hand():
    assert vector_norms(torch.tensor([[3.0, 4.0], [0.0, -2.0], [0.0, 0.0]])).tolist() == [5.0, 2.0, 0.0]


def test_norms_are_roots_of_sums_of_squares_over_the_last_axis_only():
    x = torch.randn(2, 3, 5, 7, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(vector_norms(x), x.square().sum(-1).sqrt())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_norms_of_half_precision_neither_overflow_nor_lose_digits(dtype):
    x = torch.full((3, 7001), 1000.0, dtype=dtype)
    assert vector_norms(x).dtype == torch.float32
    torch.testing.assert_close(vector_norms(x), torch.full((3,), 1000 * 7001**0.5), rtol=1e-5, atol=0)


def test_a_ratio_worked_by_hand():
    values = torch.tensor([[6.0, 1.0, 2.0, 3.0], [1.0, 1.0, 1.0, 1.0]])
    assert norm_ratio(values).tolist() == [3.0, 1.0]
    torch.testing.assert_close(norm_ratio(values, position=2), torch.tensor([0.6, 1.0]))


@pytest.mark.parametrize("position", range(7))
def test_a_ratio_compares_one_position_with_the_mean_of_the_others(position):
    values = torch.rand(2, 3, 5, 7, generator=torch.Generator().manual_seed(0)) + 0.1
    others = [p for p in range(7) if p != position]
    expected = values[..., position] / values[..., others].mean(-1)
    torch.testing.assert_close(norm_ratio(values, position), expected)


@pytest.mark.parametrize("position", [0, 2])
def test_a_ratio_of_padded_norms_is_that_without_the_padding(position):
    values = torch.rand(2, 3, 7, generator=torch.Generator().manual_seed(0)) + 0.1
    padded = torch.nn.functional.pad(values, (0, 4), value=torch.nan)
    torch.testing.assert_close(norm_ratio(padded, position), norm_ratio(values, position))
    assert norm_ratio(padded, 8).isnan().all()


@pytest.mark.parametrize(
    ("ratio", "found"),
    [
        ([1.0, 1.5, 30.0, 45.0, 3.0, 1.0], Steps(2, 4)),  # half way, on a scale of factors: 8.2
        ([1.0, 15.0, 5.0, 5.0, 7.0, 16.0, 9.0, 4.5, 3.8, 2.0], Steps(1, 8)),  # as Gemma 3: it dips, and stays above 4
        ([1.0, 9.0, 1.0, 27.0, 9.0, 1.0], Steps(3, 5)),  # the fall before the largest rise does not count
        ([1.0, 8.0, 8.0, 5.0], Steps(1, None)),  # stays above 2.8
        ([1.0, 1.0, 8.0], Steps(2, None)),  # rises at the end
        ([1.0, 2.0, 1.0], Steps(1, 2)),  # a factor of just `least` is a step, either way
        ([1.0, 1.9, 3.6], None),  # no step is as large
        ([9.0, 3.0, 1.0], None),
        ([5.0], None),
    ],
)
def test_steps_worked_by_hand(ratio, found):
    assert steps(torch.tensor(ratio)) == found


def test_a_smaller_threshold_finds_smaller_steps():
    assert steps(torch.tensor([1.0, 1.9, 3.6, 1.5]), least=1.5) == Steps(1, 3)
