import math
from dataclasses import replace

import pytest
import torch
from refusals import refused

import sinkinterp as si
from sinkinterp.metrics.estimates import estimate_cells
from sinkinterp.metrics.importance import PAPER, VISIBLE
from sinkinterp.report.heads import sinks_by_head, sinks_by_position
from sinkinterp.report.norms import residual_norms_by_block
from sinkinterp.report.readings import Protocol, protocol_note
from sinkinterp.report.report import Report, overview_tables
from sinkinterp.report.summary import sink_summary
from sinkinterp.table import high_of, low_of

PROTOCOL = Protocol(
    "toy", 3, 5, "float32", "never (none)", "a.txt", "abc", 1, ("Swap()",), "queries that can see the key", "",
    {"torch": "2"},
)  # fmt: skip
OTHER_HEADS = [[[0.9, 0.1, 0.1, 0.1], [0.9, 0.9, 0.1, 0.1]], [[0.1] * 4] * 2, [[0.5] * 4] * 2]
FIRST = torch.tensor(OTHER_HEADS)  # sequence layer head; rates above 0.3: 3/8, 0, 1; means 0.4, 0.1, 0.5
NULL = torch.tensor([0.2, 0.4])[:, None].expand(3, 2, 4)  # 0.2 in the first layer, 0.4 in the second


def with_first(first, others, length):
    """Norms whose first position is `first` and whose others are all `others`."""
    return torch.cat((first[..., None], torch.full((*first.shape, length - 1), others)), -1)


KV = torch.tensor([[2.0, 3.0], [5.0, 7.0]]).expand(3, 2, 2)
RESIDUALS = torch.tensor([[1.0, 9.0, 4.0], [1.0, 11.0, 4.0], [1.0, 13.0, 4.0]])
ALPHA, BELOW = with_first(FIRST, 0.05, 5), with_first(NULL, 0.03, 5)
REPORT = Report(
    tokens=torch.tensor([[2, 3, 5, 7, 3], [2, 5, 3, 7, 7], [2, 3, 3, 5, 5]]), positions=tuple(range(5)),
    attention_layers=(1, 4), importance=ALPHA, raw_importance=ALPHA, null=BELOW, bias_null=BELOW,
    off_sequence=torch.zeros(3, 2, 4), slot_importance=None, slot_null=None,
    residual_norms=with_first(RESIDUALS * 2, 2.0, 5), key_norms=with_first(KV / 10, 1.0, 5),
    value_norms=with_first(KV * 4, 4.0, 5), protocol=PROTOCOL,
)  # fmt: skip


def of(table, quantity):
    (row,) = [row for row in table.records() if row["quantity"].startswith(quantity)]
    return row["value"], row["null"]


def test_the_summary_worked_by_hand():
    table = sink_summary(REPORT)
    assert of(table, "Sink_1") == pytest.approx((11 / 24, 0.5))
    assert of(table, "alpha_1, mean") == pytest.approx((1 / 3, 0.3))
    assert of(table, "value-norm") == pytest.approx((17 / 4, 1))
    assert of(table, "key-norm") == pytest.approx((17 / 40, 1))
    assert of(table, "residual-norm") == pytest.approx((11, 1))
    assert len(table.frame) == 5


def test_the_summary_follows_epsilon():
    assert of(sink_summary(REPORT, 0.6), "Sink_1 at epsilon 0.6") == pytest.approx((1 / 8, 0.0))
    refused(lambda: sink_summary(REPORT, 1.0))


@pytest.mark.parametrize("epsilon", [0.3, 0.95])
def test_the_interval_of_a_rate_is_that_of_the_report_within_0_and_1_and_no_point(epsilon):
    (row,) = [row for row in sink_summary(REPORT, epsilon).records() if row["quantity"].startswith("Sink_1")]
    assert row | estimate_cells("value", REPORT.sink_rate(0, epsilon)) == row
    assert 0 <= row["value low"] < row["value high"] <= 1


def test_no_interval_of_two_texts_leaves_the_range_of_its_quantity():
    tokens = torch.cat((torch.full((1, 16), 5), torch.arange(16)[None] % 7))  # the sinks of the two are far apart
    report = si.measure("sinkinterp/repeats-softmax", tokens, progress=False)
    free = (
        "score gap",
        "alpha_1 of raw weights",
        "off-sequence mass (1 - row sum), mean over heads",
        "loss, nats per token",
    )
    n_clipped = 0
    for table in overview_tables(report):
        for row in table.records():
            for column in [name.removesuffix(" low") for name in row if name.endswith(" low")]:
                name = f"{row.get('quantity', '')} {column}"
                if row[low_of(column)] is None or any(word in name for word in free):
                    continue
                is_share = any(word in name for word in ("Sink", "alpha", "sink rate", "cos"))
                least, most = -1 if "cos" in name else 0, 1 if is_share else math.inf
                assert least <= row[low_of(column)] <= row[column] + 1e-6, (table.title, row)
                assert row[column] - 1e-6 <= row[high_of(column)] <= most, (table.title, row)
                n_clipped += row[low_of(column)] == least or row[high_of(column)] == most
    assert n_clipped > 3


def test_raw_weights_are_told_only_where_they_differ():
    table = sink_summary(replace(REPORT, raw_importance=REPORT.importance * -2))
    value, null = of(table, "alpha_1 of raw weights")
    assert (value, null) == (pytest.approx(-2 / 3), None)


def test_a_slot_has_its_own_rows():
    table = sink_summary(replace(REPORT, slot_importance=FIRST, slot_null=NULL))
    assert of(table, "Sink_* at epsilon 0.3 (slot)") == pytest.approx((11 / 24, 0.5))
    assert of(table, "alpha_*") == pytest.approx((1 / 3, 0.3))


def test_heads_stand_beside_the_ratios_of_the_kv_head_they_share():
    table, low, high = sinks_by_head(REPORT), 0.7 / 3, 0.5
    for name, by_hand in {
        "layer": [1] * 4 + [4] * 4,
        "head": [0, 1, 2, 3] * 2,
        "value ratio": [2, 2, 3, 3, 5, 5, 7, 7],
        "key ratio": [0.2, 0.2, 0.3, 0.3, 0.5, 0.5, 0.7, 0.7],
        "alpha_1": [high, low, low, low, high, high, low, low],
        "sink rate": [2 / 3, *[1 / 3] * 3, 2 / 3, 2 / 3, 1 / 3, 1 / 3],
        "null": [0.2] * 4 + [0.4] * 4,
    }.items():
        assert table.frame[name].tolist() == pytest.approx(by_hand)


def test_positions_stand_beside_their_own_null():
    table = sinks_by_position(REPORT)
    assert table.frame["paper"].tolist() == [f"Sink_{k}" for k in range(1, 6)] and table.frame["position"].tolist() == [
        *range(5)
    ]
    for row, by_hand in zip(table.records(), ((11 / 24, 0.5, 1 / 3, 0.3), (0, 0, 0.05, 0.03)), strict=False):
        assert [row[name] for name in ("sink rate", "null rate", "alpha", "null alpha")] == pytest.approx(by_hand)


def measured_at(*positions):
    names = ("importance", "raw_importance", "null", "bias_null")
    return replace(REPORT, positions=positions, **{name: getattr(REPORT, name)[..., list(positions)] for name in names})


@pytest.mark.parametrize("table", [sink_summary, sinks_by_head])
def test_the_order_of_the_measured_positions_does_not_matter(table):
    rows = [table(replace(r, raw_importance=r.raw_importance * 2)).records() for r in (REPORT, measured_at(4, 0))]
    assert rows[0] == rows[1]


def test_residuals_are_told_per_block_and_model():
    table = residual_norms_by_block({"a": REPORT, "b": replace(REPORT, residual_norms=REPORT.residual_norms * 3)})
    assert [(row["model"], row["block"]) for row in table.records()] == [(m, block) for m in "ab" for block in range(3)]
    by_hand = {"first token": [2, 22, 8, 6, 66, 24], "other tokens": [2] * 3 + [6] * 3, "ratio": [1, 11, 4] * 2}
    for name, values in by_hand.items():
        assert table.frame[name].tolist() == pytest.approx(values)
    lows, highs = table.frame["ratio low"].tolist(), table.frame["ratio high"].tolist()
    assert lows[1] < 11 < highs[1] and lows[0] == highs[0] == 1


def test_every_table_carries_its_protocol():
    text = "toy: n=3, T=5, BOS never (none), float32, a.txt, 1 text too short, edits Swap(), epsilon=0.25"
    assert protocol_note(REPORT, 0.25).startswith(text)
    said = [replace(PROTOCOL, texts_too_short=n).line() for n in (0, 2)]
    assert "too short" not in said[0] and "2 texts too short" in said[1]
    whole = replace(PROTOCOL, revision="r", encoder="16 tokens", ended="time is up", attention_note="eager", shortest=2)
    varying = ("source", "texts_too_short", "edits")
    line = "n=3 (time is up), T=2 to 5, BOS never (none), encoder 16 tokens, float32, eager, weights: r"
    assert whole.line(*varying) == line
    assert "divided" not in protocol_note(REPORT, 0.25)
    for divisor, other in ((VISIBLE, "T - k + 1"), (PAPER, VISIBLE.description)):
        windowed = replace(PROTOCOL, hides_first_key=True, divisor=divisor.description)
        note = protocol_note(replace(REPORT, protocol=windowed), 0.25)
        assert f"divided by {divisor.description}" in note and note.endswith(other)
    assert all(table(REPORT, 0.25).note.startswith(text) for table in (sink_summary, sinks_by_head, sinks_by_position))
