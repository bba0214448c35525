"""The tables of what instruments measure, and of positions and tokens, worked by hand."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from refusals import refused

from sinkinterp.report.heads import (
    followed,
    score_gaps_by_head,
    sinks_by_epsilon,
    sinks_by_token,
    top_heads,
    writes_by_head,
)
from sinkinterp.report.norms import largest_entries, massive_by_block
from sinkinterp.report.readings import Protocol
from sinkinterp.report.report import Report, overview_tables

N, T = 3, 11  # two layers of two heads that share one kv head; 4 residuals
PROTOCOL = Protocol("toy", N, T, "float32", "none", "a.txt", "abc", 0, (), "queries that can see the key", "", {})


def spread(first, rest, *shape):
    """`first` at position 0 and `rest` at the others."""
    x = torch.full((*shape, T), rest)
    x[..., 0] = torch.tensor(first)
    return x


ALPHA = spread([[0.7, 0.1], [0.4, 0.2]], 0.05, N, 2, 2)
ALPHA[0, 0, 0, 2] = 0.9  # one later token, of one sequence, in one head
RATIOS = spread([1.0, 5.0, 4.0, 1.0], 1.0, N, 4)
CLOSE = torch.zeros(N, 4, T)
CLOSE[:, :, 0] = 1
CLOSE[1, 1, 5] = 0.95
TOKENS = torch.arange(N * T).reshape(N, T)
TOKENS[:, 0] = 99
ANGLES = torch.tensor([0.8, 0.2]).expand(N, 2, 2, 2)
TOP = torch.tensor([[-200.0, 0, 7], [3, 1, 2]]).expand(N, 4, 2, 3)
REPORT = Report(
    tokens=TOKENS, positions=tuple(range(T)), attention_layers=(0, 3), importance=ALPHA, raw_importance=ALPHA,
    null=torch.full_like(ALPHA, 0.1), bias_null=torch.full_like(ALPHA, 0.1), slot_importance=None, slot_null=None,
    off_sequence=torch.zeros(N, 2, 2), residual_norms=RATIOS, key_norms=spread([[1.0], [1.0]], 1.0, N, 2, 1),
    value_norms=spread([[0.1], [0.9]], 1.0, N, 2, 1), protocol=PROTOCOL,
    extras={
        "qk_angles": ANGLES, "qk_norm_products": torch.tensor([10.0, 5.0]).expand(N, 2, 2, 2),
        "key_rank": torch.tensor([[1.5], [2.5]]).expand(N, 2, 1), "update_rank": torch.full((N, 2, 2), 1.25),
        "peak_over_median": torch.tensor([2.0, 2000, 2000, 3]).expand(N, 4), "kurtosis": torch.full((N, 4), 6.0),
        "massive_entries": torch.tensor([0, 2, 1, 0]).expand(N, 4), "top_entries": TOP, "cosine_to_first": CLOSE,
        "loss": torch.arange(1.0, T).expand(N, -1),
    },
)  # fmt: skip


def test_the_score_gap_is_split_by_hand_and_becomes_a_frame_with_its_note():
    table = score_gaps_by_head(REPORT)
    assert [(row["layer"], row["head"]) for row in table.records()] == [(0, 0), (0, 1), (3, 0), (3, 1)]
    # 0.8 * 10 - 0.2 * 5 = 7 = (0.8 - 0.2) * (10 + 5) / 2 + (10 - 5) * (0.8 + 0.2) / 2
    columns = ("score gap", "by angle", "by norms", "cosine, first key", "cosine, others", "norm product, others")
    assert [table.records()[0][name] for name in columns] == pytest.approx([7, 4.5, 2.5, 0.8, 0.2, 5])
    assert len(table.frame) == 4 and table.note.startswith("toy: n=3, T=11")


def test_only_sink_heads_are_called_no_op_or_broadcast_and_the_strongest_come_first():
    table = writes_by_head(REPORT)
    assert table.frame["kind of sink"].tolist() == ["no-op", "none", "broadcast", "none"]
    assert table.frame["stable rank of keys"].tolist() == [1.5, 1.5, 2.5, 2.5]
    assert top_heads(table, 3).frame["alpha_1"].tolist() == pytest.approx([0.7, 0.4, 0.2])


def test_massive_activations_are_told_with_their_place_and_their_lifetime():
    table = massive_by_block(REPORT)
    assert [row["massive entries"] for row in table.records()] == [0, 2, 1, 0]
    assert table.records()[1]["max |x|"] == 200 and table.records()[1]["max / median"] == 2000
    assert table.records()[0]["usual entry"] == "position 0, channel 7 (100%)"
    assert "in 2 blocks, from 1 to 2" in table.note


def test_first_and_later_tokens_are_told_apart():
    first, later = sinks_by_token(REPORT, token_text=lambda token: f"<{token}>").records()
    assert (first["place"], first["token"], first["occurrences"]) == ("first", 99, 3)
    assert first["share of heads"] == pytest.approx(0.5) and first["text"] == "<99>"  # 0.7 and 0.4 of four heads
    assert (later["place"], later["token"], later["share of heads"]) == ("later", 2, pytest.approx(1 / 4))


def test_tokens_that_hardly_any_query_follows_do_not_count():
    late = ALPHA.clone()
    late[..., -1] = 0.9
    rows = sinks_by_token(replace(REPORT, importance=late)).records()
    assert all(row["place"] == "first" or row["token"] == 2 for row in rows)


def test_the_end_of_a_short_text_does_not_count_beside_a_longer_one():
    tokens, late = TOKENS.clone(), ALPHA.clone()
    tokens[1, 6:] = -1  # a text of 6 tokens beside two of 11
    late[1, ..., 5] = 0.9
    late[1, ..., 6:] = torch.nan
    report = replace(REPORT, tokens=tokens, importance=late)
    assert followed(report).sum(1).tolist() == [4, 0, 4]
    assert [row["token"] for row in sinks_by_token(report).records() if row["place"] == "later"] == [2]
    assert "position 5" not in str(report.summary())


def test_the_grid_falls_with_epsilon_beside_its_null():
    rows = {row["epsilon"]: row for row in sinks_by_epsilon(REPORT, epsilons=(0.05, 0.3, 0.6)).records()}
    assert [rows[e]["Sink_1"] for e in (0.05, 0.3, 0.6)] == pytest.approx([1, 0.5, 0.25])
    assert [rows[e]["null"] for e in (0.05, 0.3, 0.6)] == [1, 0, 0]
    assert rows[0.3]["largest other"] == pytest.approx(1 / 12)  # one of 3 sequences x 4 heads


def test_what_was_not_measured_is_left_out_of_the_overview_and_refused_alone():
    bare = replace(REPORT, extras={})
    assert len(overview_tables(REPORT)) == 6 and len(overview_tables(bare)) == 3
    for table in (score_gaps_by_head, writes_by_head, massive_by_block):
        refused(partial(table, bare))


D = 7
X = torch.arange(N * 4 * D * T).float().reshape(N, 4, D, T) % 13
X[1, 2, 5, 3] = -99.0
WITH = replace(REPORT, extras={**REPORT.extras, "residuals": X})


def test_entries_are_told_by_place_most_frequent_first():
    top = torch.tensor([[-200.0, 0, 7], [3, 1, 2]]).repeat(N, 4, 1, 1)
    top[:, 2, 0, 0] = torch.tensor([-300.0, -100.0, -500.0])
    top[0, 2, 1] = torch.tensor([4.0, 0, 7])
    spiked = replace(REPORT, extras={**REPORT.extras, "top_entries": top})
    table = largest_entries(spiked, token_text=lambda token: f"<{token}>")
    assert table.title == "Largest residual entries of block 2"  # the tallest: 300 on average, others 200
    first, second = table.records()
    assert (first["position"], first["channel"], first["token"], first["in sequences"]) == (0, 7, "<99>", 4)
    assert (first["mean value"], first["largest |value|"]) == (-896 / 4, 500)
    assert (second["position"], second["in sequences"], second["token"]) == (1, 2, "2 different")
