import torch

from sinkinterp.metrics.writes import BOUND, largest_eigenvalue, power_iteration


def with_eigenvalues(*values):
    """A symmetric matrix with these eigenvalues, in double precision."""
    q, _ = torch.linalg.qr(torch.randn(len(values), len(values), dtype=torch.float64))
    return q @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ q.mT


def test_what_power_iteration_proves_is_within_the_bound():
    seconds = torch.linspace(0, 1, 29).tolist()
    a = torch.stack([with_eigenvalues(1.0, second, 0.3 * second, 0.1, 0.0) for second in seconds])
    largest, is_proven = power_iteration(a)
    expected = torch.linalg.eigvalsh(a)[:, -1]
    error = (largest - expected).abs() / expected
    assert error[is_proven].max() <= BOUND
    assert is_proven[:15].all()
    assert not is_proven[-1]


def test_a_start_without_the_first_eigenvector_proves_nothing():
    _, is_proven = power_iteration(torch.eye(5)[None])
    assert not is_proven.any()
    torch.testing.assert_close(largest_eigenvalue(torch.eye(5)[None]), torch.ones(1))


def test_the_largest_eigenvalue_worked_by_hand():
    a = torch.tensor([[[2.0, 1.0], [1.0, 2.0]], [[0.0, 0.0], [0.0, 5.0]], [[torch.nan, 0.0], [0.0, 1.0]]])
    torch.testing.assert_close(largest_eigenvalue(a), torch.tensor([3.0, 5.0, torch.nan]), equal_nan=True)
