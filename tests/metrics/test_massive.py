import numpy as np
import pytest
import torch

from sinkinterp.metrics.residuals import (
    ALL_ENTRIES,
    METRICS,
    Entries,
    Lifetime,
    is_massive,
    kurtosis,
    lifetime,
    massive_count,
    peak,
    peak_over_median,
    top_entries,
)

SMALL = torch.tensor([[[1.0, -2.0, 3.0]], [[0.5, 0.25, -8.0]]])  # 2 sequences, 1 token, 3 channels


def spiked(value, sequences=3, length=5, d_model=7):
    x = torch.full((sequences, length, d_model), 0.1)
    x[1, 2, 4] = value
    return x


def test_peaks_worked_by_hand():
    assert peak(SMALL).tolist() == [3.0, 8.0]
    assert peak_over_median(SMALL).tolist() == [1.5, 16.0]
    assert peak_over_median(torch.tensor([[[1.0, -2.0], [4.0, 8.0]]])).tolist() == [4.0]  # the lower of two medians
    assert peak_over_median(torch.tensor([[[0.0, 0.0, 5.0]]])).tolist() == [torch.inf]


def test_peaks_are_those_numpy_finds():
    x = torch.randn(3, 5, 7)
    size = np.abs(x.numpy()).reshape(3, -1)
    np.testing.assert_allclose(peak(x), size.max(1))
    np.testing.assert_allclose(peak_over_median(x), size.max(1) / np.median(size, 1), rtol=1e-6)


def test_only_an_entry_over_both_thresholds_is_massive():
    assert is_massive(spiked(-101.0)).nonzero().tolist() == [[1, 2, 4]]
    assert not is_massive(spiked(100.0)).any()  # large enough next to the median 0.1, not in itself
    assert not is_massive(spiked(25.0) * 5).any()  # large enough in itself, not next to the median 0.5
    assert is_massive(spiked(60.0), least=50.0, times=500.0).nonzero().tolist() == [[1, 2, 4]]
    assert is_massive(torch.tensor([[[0.125, 0.125, 125.0]]])).sum() == 1  # a thousand medians are enough


def test_medians_are_taken_per_sequence():
    x = torch.ones(2, 3, 5)
    x[:, 0, 0], x[0, 1:] = 2000.0, 10.0
    assert is_massive(x).nonzero().tolist() == [[1, 0, 0]]


def test_massive_entries_are_counted_by_sequence():
    x = torch.randn(3, 17, 13) ** 9
    x[2] *= 1e-4
    for thresholds in ((100.0, 1000.0), (0.5, 2.0), (1e9, 1.0)):
        assert massive_count(x, *thresholds).equal(is_massive(x, *thresholds).sum((1, 2))), thresholds


def test_all_entries_have_channels_before_positions_since_reports_pad_positions():
    x = torch.randn(3, 5, 7)
    entries = ALL_ENTRIES.read(x)
    assert entries.shape == (3, 7, 5)
    assert all(entries[b, j, i] == x[b, i, j] for b, i, j in torch.cartesian_prod(*map(torch.arange, x.shape)).tolist())


@pytest.mark.parametrize("count", [1, 5, 17, 40, 17 * 13])
def test_top_entries_are_those_of_a_full_sort(count):
    x = torch.randn(3, 17, 13)
    top = top_entries(x, count)
    largest = x.flatten(1).abs().sort(descending=True)
    index = largest.indices[:, :count]
    assert top.values.abs().equal(largest.values[:, :count])
    assert (top.positions * 13 + top.channels).equal(index)


def test_residuals_are_left_as_they_are():
    x = torch.randn(3, 5, 7)
    before = x.clone()
    for metric in METRICS:
        metric.read(x)
    assert x.equal(before)


def test_kurtosis_worked_by_hand():
    x = torch.tensor([[[1.0, 1.0, 1.0], [-1.0, 1.0, -1.0]], [[0.0, 0.0, 0.0], [0.0, 9.0, 0.0]]])
    torch.testing.assert_close(kurtosis(x), torch.tensor([1.0, 3.0]))
    torch.testing.assert_close(kurtosis(torch.tensor([[[1.0, 3.0], [3.0, 1.0], [2.0, 0.0]]])), torch.tensor([37 / 36]))


def test_kurtosis_is_the_fourth_moment_of_the_channels_rms():
    x = torch.randn(3, 5, 7).double()
    rms = x.square().mean(1).sqrt()
    expected = (rms**4).mean(1) / (rms**2).mean(1) ** 2
    torch.testing.assert_close(kurtosis(x), expected.float())
    torch.testing.assert_close(kurtosis(x * 1e12), expected.float())
    assert expected.ge(1).all() and expected.le(7).all()


def test_half_precision_does_not_overflow():
    x = torch.full((2, 3, 5), 60000.0, dtype=torch.float16)
    torch.testing.assert_close(kurtosis(x), torch.ones(2))
    assert peak(x).dtype == torch.float32 and top_entries(x, 1).values.dtype == torch.float32


def test_top_entries_worked_by_hand():
    top = top_entries(torch.tensor([[[1.0, -7.0, 2.0], [5.0, 0.0, -3.0]]]), 3)
    assert top.values.tolist() == [[-7.0, 5.0, -3.0]]
    assert (top.positions.tolist(), top.channels.tolist()) == ([[0, 1, 1]], [[1, 0, 2]])


def test_a_lifetime_worked_by_hand():
    assert lifetime(torch.tensor([False, False, True, True, False, True, False])) == Lifetime(2, 5, 3)
    assert lifetime(torch.tensor([True])) == Lifetime(0, 0, 1)
    assert lifetime(torch.zeros(5, dtype=torch.bool)) is None


def test_entries_survive_being_stacked():
    top = top_entries(torch.randn(3, 7, 11), 5)
    again = Entries.unstacked(top.stacked())
    assert all(getattr(again, name).equal(value) for name, value in vars(top).items())
    assert again.positions.dtype == again.channels.dtype == torch.long


@pytest.mark.parametrize(
    ("background", "value", "n_massive"),
    [(0.01, 100.4, 1), (0.01, -100.4, 1), (0.01, 99.6, 0), (2.0, -2000.8, 1), (2.0, -1999.2, 0)],
)
def test_an_entry_is_massive_above_100_and_from_1000_medians_on_unless_told_otherwise(background, value, n_massive):
    x = torch.full((3, 5, 7), background)
    x[1, 2, 4] = value
    assert is_massive(x).sum() == n_massive and massive_count(x).tolist() == [0, n_massive, 0]
