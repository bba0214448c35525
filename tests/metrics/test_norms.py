import pytest
import torch

from sinkinterp.metrics.norms import norm_ratio, norms


def test_norms_worked_by_hand():
    assert norms(torch.tensor([[3.0, 4.0], [0.0, -2.0], [0.0, 0.0]])).tolist() == [5.0, 2.0, 0.0]


def test_norms_are_roots_of_sums_of_squares_over_the_last_axis_only():
    x = torch.randn(2, 3, 5, 7, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(norms(x), x.square().sum(-1).sqrt())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_norms_of_half_precision_neither_overflow_nor_lose_digits(dtype):
    x = torch.full((3, 7001), 1000.0, dtype=dtype)
    assert norms(x).dtype == torch.float32
    torch.testing.assert_close(norms(x), torch.full((3,), 1000 * 7001**0.5), rtol=1e-5, atol=0)


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


def test_a_ratio_does_not_depend_on_the_unit():
    values = torch.rand(2, 3, 7, generator=torch.Generator().manual_seed(0)) + 0.1
    torch.testing.assert_close(norm_ratio(values * 1000), norm_ratio(values))
