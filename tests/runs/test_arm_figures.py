"""Figures of trained models side by side."""

from sinkinterp._experiments.shared.study import by_model

from sinkinterp.report.columns import ALPHA_1, LOSS, MODEL, RESIDUAL_RATIO, SEED, SINK_1
from sinkinterp.table import NULL, Table

QUANTITIES = (RESIDUAL_RATIO, ALPHA_1, SINK_1, LOSS)


def test_every_mark_lies_on_its_axis():
    rows = [
        {MODEL: name, SEED: seed, RESIDUAL_RATIO: 16.6 + seed, ALPHA_1: 0.9, NULL: 0.1, SINK_1: 1.0, LOSS: 3.4}
        for name in ("softmax", "sigmoid")
        for seed in range(3)
    ]
    figure = by_model(Table("models", "", tuple(rows)), QUANTITIES)
    axes = [axis.range for axis in figure.select_yaxes()]
    assert len(axes) == len(QUANTITIES)
    for i, quantity in enumerate(QUANTITIES):
        marks = [y for trace in figure.select_traces(row=i + 1, col=1) for y in trace.y]
        low, high = axes[i] or (min(marks), max(marks))
        assert all(low <= mark <= high for mark in marks), quantity
