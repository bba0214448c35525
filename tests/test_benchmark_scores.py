"""The benchmark of large scores: weights are as exact as eager attention's, where the kernel's log-sum-exps are not."""

from benchmarks.scores import Biased, rows


def test_weights_are_as_exact_as_eagers_where_the_kernels_log_sum_exps_are_not():
    first, every = rows({"large": Biased(300, 200, layers=2, width=32, heads=4)}, 1)
    assert (first["positions"], every["positions"]) == ("first", "all")
    for row in (first, every):
        ours, eager = (float(row[f"error, {name}"]) for name in ("ours", "eager"))
        assert ours <= 3 * eager + 1e-6 and float(row["time over that by the kernel's"]) > 0
    assert float(first["error, the kernel's log-sum-exps"]) > 1e-5
