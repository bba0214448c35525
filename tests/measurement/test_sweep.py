"""si.sweep: interventions beside the untouched model and beside random ones of equal size."""

import pytest
import torch
from backends.zoo import subject_of, tokens_of

import sinkinterp as si
from sinkinterp.interventions import BiasColumn, ChangeValues, RemoveColumn, Scale, Temperature, Zero, ZeroKeyBias
from sinkinterp.measurement.sweep import first_sink_rate, importance, loss
from sinkinterp.metrics.estimates import change_of_rates, estimate

TOKENS = tokens_of(13)


def test_every_row_is_what_a_measurement_by_hand_says():
    subject = subject_of("gpt2")
    edits = [Temperature(3.0, layers=[1]), (Temperature(3.0), BiasColumn(2.0, positions=[0]))]
    table = si.sweep(subject, TOKENS, edits, metric=importance)
    assert table.frame["edit"].tolist() == [
        "none", "Temperature(3.0, layers=[1])", "Temperature(3.0) + BiasColumn(2.0)"
    ]  # fmt: skip
    before = importance(si.measure(subject, TOKENS))
    for row, group in zip(table.records(), ((), edits[:1], edits[1]), strict=True):
        after = importance(si.measure(subject, TOKENS, edits=group))
        value, change = estimate(after), estimate(after - before)
        assert (row["value"], row["value low"], row["value high"]) == (value.mean, value.low, value.high)
        assert (row["change"], row["change low"], row["change high"]) == (change.mean, change.low, change.high)
    assert "importance" in table.note and "n=5, T=13" in table.note


def test_an_edit_of_the_sink_stands_out_from_random_ones_and_a_null_does_not():
    model = si.load("sinkinterp/demo-softmax")
    tokens = torch.randint(64, (37, 16), generator=torch.Generator().manual_seed(0))
    none, row = si.sweep(model, tokens, [si.SwapPositions(0, 4)], control="random").records()
    assert row["change high"] < -0.8 and abs(row["control change"]) < 0.1
    before, after = (si.measure(model, tokens, edits=edits) for edits in ([], si.SwapPositions(0, 4)))
    for cells, rate in ((none, before.sink_rate()), (row, after.sink_rate())):
        assert (cells["value"], cells["value low"], cells["value high"]) == (rate.mean, rate.low, rate.high)
    change = change_of_rates(first_sink_rate(before), first_sink_rate(after), paired=True)
    assert (row["change"], row["change low"], row["change high"]) == (change.mean, change.low, change.high)
    assert (none["change low"], none["change high"]) == (0, 0) and row["change low"] < row["change high"]
    assert row["change beyond control"] == pytest.approx(row["change"] - row["control change"])
    by_loss = si.sweep(subject_of("gpt2"), TOKENS, [ZeroKeyBias(kv_heads=[(1, 2)])], metric=loss, control=2)
    assert abs(by_loss.records()[1]["change"]) < 1e-6 and "mean of 2 random" in by_loss.note


def test_a_sweep_says_how_far_it_is():
    said = []
    edits = [ChangeValues(Zero(), positions=[0]), ChangeValues(Scale(2.0), positions=[0])]
    si.sweep(subject_of("gpt2"), TOKENS, edits, control=2, progress=lambda done, of: said.append((done, of)))
    assert said == [(i, 7) for i in range(8)]


def test_a_metric_of_small_whole_numbers_has_changes_below_zero():
    def many(report):
        return (report.alpha() > 0.1).sum((1, 2)).to(torch.uint8)

    none, edited = si.sweep(subject_of("gpt2"), TOKENS, [ChangeValues(Zero()), RemoveColumn()], metric=many).records()[
        ::2
    ]
    assert edited["value"] < none["value"] and edited["change"] == pytest.approx(edited["value"] - none["value"])


def test_controls_fit_the_shortest_of_texts():
    rows = [TOKENS[0].tolist(), TOKENS[1, :4].tolist()]
    for seeds in (1, 2, 3):
        assert len(si.sweep(subject_of("llama"), rows, si.SwapPositions(0, 2), control=seeds).records()) == 2
