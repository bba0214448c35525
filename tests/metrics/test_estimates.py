import math

import pytest
import torch
from scipy import stats

from sinkinterp.metrics.estimates import (
    COSINES,
    SHARES,
    SIZES,
    change_of_rates,
    difference,
    estimate,
    estimate_cells,
    intervals,
    mean_cells,
    rate,
    ratio,
)


def normal(n, seed=0):
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def width(found):
    return found.high - found.low


def test_a_rate_of_none_in_n_sequences_may_be_as_high_as_one_trial_a_sequence_says():
    none, all_of_them = rate(torch.zeros(100)), rate(torch.ones(100))
    assert none.high == pytest.approx(0.0362, abs=1e-4) and (none.low, none.mean) == (0, 0)
    assert all_of_them.low == pytest.approx(1 - none.high) and (all_of_them.mean, all_of_them.high) == (1, 1)
    assert rate(torch.tensor([0.0, 0.1, 0.9])).low >= 0 and rate(torch.tensor([0.0, 0.1, 0.9])).high <= 1
    assert rate(normal(101).abs()) == estimate(normal(101).abs()) or rate(normal(101).abs()).high == 1
    assert math.isnan(rate(torch.zeros(1)).low)


@pytest.mark.parametrize("ends", [SHARES, SIZES, COSINES])
@pytest.mark.parametrize("n", [2, 3, 29, 31])
def test_an_interval_ends_where_its_quantity_ends_and_holds_the_mean(n, ends):
    least, most = ends[0], min(ends[1], 7.0)
    for share in (0.0, 0.01, 0.4, 0.99, 1.0):
        values = least + (most - least) * (torch.rand(n, generator=torch.Generator().manual_seed(n)) < share).double()
        found, free = estimate(values).within(ends), estimate(values)
        assert ends[0] <= found.low <= found.mean <= found.high <= ends[1]
        assert found.low in (free.low, ends[0]) and found.high in (free.high, ends[1])
    assert math.isnan(estimate(values[:1]).within(ends).low) and math.isnan(estimate(values[:1]).within(ends).high)


def test_one_sequence_has_no_interval():
    one, two = torch.tensor([0.5]), torch.tensor([1.0, 2.0])
    of_groups = (difference(one, two, paired=False), difference(two, one, paired=False))
    for found in (estimate(one), difference(one, one, paired=True), *of_groups, ratio(one, one)):
        assert math.isnan(found.low) and math.isnan(found.high) and not math.isnan(found.mean)
    assert str(estimate(one)) == "0.5"
    assert estimate_cells("x", estimate(one)) == {"x": 0.5, "x low": None, "x high": None}


def test_the_interval_of_constant_data_is_a_point():
    found = estimate(torch.full((13,), 0.3))
    assert found.low == pytest.approx(found.mean) == pytest.approx(found.high)
    assert found.mean == pytest.approx(0.3)
    assert found != estimate(torch.full((13,), 0.25)) and found != 0.3


def test_cells_of_a_mean_may_be_below_zero_unless_its_quantity_is_not():
    values = torch.tensor([-1.0, 1.0])
    assert mean_cells("x", values)["x low"] == estimate(values).low < mean_cells("x", values, COSINES)["x low"] == -1


def test_sequences_without_the_position_do_not_count():
    values = normal(13)
    gaps = torch.cat([torch.full((2,), torch.nan), values, torch.full((3,), torch.nan)])
    assert estimate(gaps) == estimate(values)
    shorter = torch.cat([normal(7, 1), torch.full((4,), torch.nan)])
    assert difference(gaps, shorter, paired=False) == difference(values, normal(7, 1), paired=False)


def test_a_pair_counts_where_both_are_known():
    nan = torch.nan
    before, after = torch.tensor([1.0, nan, 3.0, 5.0]), torch.tensor([2.0, 7.0, nan, 7.0])
    assert difference(before, after, paired=True) == estimate(torch.tensor([1.0, 2.0]))


@pytest.mark.parametrize("paired", [True, False])
def test_nothing_known_gives_nothing_known(paired):
    found = difference(torch.full((3,), torch.nan), normal(3), paired)
    assert all(map(math.isnan, (found.mean, found.low, found.high)))
    assert math.isnan(estimate(torch.empty(0)).mean)


def test_a_ratio_is_of_means_and_of_pairs():
    before = normal(400).abs() + 1
    exact = ratio(before / 3, before)  # but for rounding
    assert exact.low == exact.mean == exact.high == pytest.approx(1 / 3)
    assert ratio(torch.tensor([1.0, 5.0]), torch.tensor([4.0, 8.0])).mean == 0.5  # not the mean of 1/4 and 5/8
    noisy = ratio(before + normal(400, 1), before)
    spread = (normal(400, 1) - (noisy.mean - 1) * before).std() / before.mean() / 400**0.5  # the delta method's
    assert (noisy.high - noisy.low) / 2 == pytest.approx(1.96 * spread.item(), rel=0.1)


@pytest.mark.parametrize(("n", "t", "least"), [(2, 12.706, 30), (5, 2.776, 4), (29, 2.048, 1)])
def test_few_pairs_have_fiellers_interval_whose_ends_student_s_t_just_tells_from_the_ratio(n, t, least):
    by_hand = ratio(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 2.0]))
    assert [by_hand.mean, by_hand.low, by_hand.high] == pytest.approx([1, 1 - 12.706 / 2, 1 + 12.706 / 2], rel=1e-4)
    before = normal(n).double() + least
    after = 3 * before + 7 * normal(n, 1)
    found = ratio(after, before)
    assert found.low < found.mean < found.high
    for end in (found.low, found.high):
        rest = after - end * before
        assert (rest.mean().abs() / rest.std() * n**0.5).item() == pytest.approx(t, rel=1e-3)


def test_a_ratio_to_what_is_zero_in_some_sequences_has_no_interval():
    found = ratio(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, 0.0, 1.0]))
    assert found.mean == pytest.approx(6.0) and math.isnan(found.low) and math.isnan(found.high)
    t = estimate(torch.tensor([-1.0, 1.0])).high  # a mean of t standard errors is where it cannot be told from 0
    pairs = [torch.tensor([mean - 1, mean + 1], dtype=torch.double) for mean in (t, t + 0.01)]
    assert [math.isnan(ratio(torch.tensor([1.0, 2.0]), pair).low) for pair in pairs] == [True, False]


@pytest.mark.parametrize("n", [2, 3, 100])
def test_a_rate_that_is_equal_in_every_sequence_has_wilsons_interval(n):
    found = rate(torch.full((n,), 0.6))
    for end in (found.low, found.high):  # Wilson 1927: the ends are the p for which 0.6 is 1.96 standard errors away
        assert abs(end - 0.6) == pytest.approx(1.959964 * (end * (1 - end) / n) ** 0.5, rel=1e-5)


@pytest.mark.parametrize("n", [2, 20, 100])
@pytest.mark.parametrize("change", [-1.0, -0.4, 0.0, 1.0])
def test_a_change_of_rates_that_is_equal_in_all_pairs_has_an_interval_that_covers_its_95_percent(n, change):
    before = torch.full((n,), max(0.0, -change))
    found = change_of_rates(before, before + change, paired=True)
    assert -1 <= found.low <= found.mean <= found.high <= 1 and found.high - found.low > 0.01
    worst = 1 - 0.025 ** (1 / n)  # with this share of other pairs, all n are alike in 2.5% of samples
    assert found.high == pytest.approx((1 - worst) * found.mean + worst)
    assert found.low == pytest.approx((1 - worst) * found.mean - worst)


def test_a_ratio_that_is_equal_in_all_pairs_is_known_also_where_the_mean_before_may_be_zero():
    before = torch.zeros(40)
    before[3] = 1
    found = ratio(2 * before, before)
    assert (found.mean, found.low, found.high) == (2, 2, 2)


def test_the_interval_of_a_ratio_does_not_depend_on_the_unit():
    after, before = torch.tensor([3.0, 4.0, 6.0]), torch.tensor([6.0, 8.0, 11.0])
    found, in_small_units = ratio(after, before), ratio(after / 2**20, before / 2**20)
    assert (found.low, found.mean, found.high) == (in_small_units.low, in_small_units.mean, in_small_units.high)
    assert found.low < 13 / 25 < found.high


def test_a_change_of_rates_with_spread_is_the_change_of_means():
    before, after = torch.rand(40), torch.rand(40)
    for paired in (True, False):
        found, expected = (f(before, after, paired) for f in (change_of_rates, difference))
        assert found == expected


@pytest.mark.parametrize("n", [2, 5, 29, 30, 31, 1000])
def test_intervals_are_those_of_scipy_at_every_number_of_values(n):
    values, others = normal(n).double(), 3 * normal(n + 2, 1).double() + 1
    theirs, found = stats.ttest_1samp(values.numpy(), 0).confidence_interval(), estimate(values)
    assert [found.low, found.high] == pytest.approx([*theirs], abs=2e-4 * width(found))
    theirs = stats.ttest_ind(others.numpy(), values.numpy(), equal_var=False).confidence_interval()
    found = difference(values, others, paired=False)  # of whole degrees of freedom: never narrower
    assert found.low <= theirs.low + 1e-3 and theirs.high <= found.high + 1e-3
    assert n < 29 or [found.low, found.high] == pytest.approx([*theirs], abs=1e-3 * width(found))
    exact = stats.binomtest(0, n).proportion_ci(method="exact")
    assert [rate(torch.zeros(n)).low, rate(torch.zeros(n)).high] == pytest.approx([*exact])
    wilson = stats.binomtest(n // 2, n).proportion_ci(method="wilson")
    share = rate(torch.full((n,), n // 2 / n, dtype=torch.double))
    assert [share.low, share.high] == pytest.approx([*wilson])


def test_the_words_for_intervals_say_where_there_are_none():
    assert "no intervals" in intervals(1) and "Student" in intervals(2) == intervals(300)
    assert "over texts" in intervals(30, "texts")
