"""Kinds of tokens, their norms, lengths and histories, worked by hand."""

from dataclasses import replace

import pytest
import torch
from report.test_tables import ALPHA, REPORT, TOKENS, N, T

from sinkinterp.report.compare import sinks_by_length
from sinkinterp.report.norms import norms_by_kind, token_kinds
from sinkinterp.runs.training_figures import training_history

WORDS = {int(TOKENS[0, 3]): ".", int(TOKENS[1, 3]): "\n", int(TOKENS[2, 3]): " ", int(TOKENS[2, 4]): "\ufffd"}


def word(token):
    return WORDS.get(token, "a.")


def at(*places):
    mask = torch.zeros(N, T, dtype=torch.bool)
    for sequence, position in places:
        mask[sequence, position] = True
    return mask


def test_every_token_has_one_kind():
    found = token_kinds(REPORT, token_text=word)
    assert list(found) == ["first token", "other sinks", "delimiters", "other tokens"]
    assert torch.stack(list(found.values())).sum(0).eq(1).all()
    assert found["first token"].equal(at((0, 0), (1, 0), (2, 0)))
    assert found["other sinks"].equal(at((0, 2)))  # above epsilon in one of four heads
    assert found["delimiters"].equal(at((0, 3), (1, 3)))  # neither a space alone nor half a character


def test_a_token_that_hardly_any_query_follows_is_no_sink():
    late = ALPHA.clone()
    late[..., T - 7] = 0.9
    assert token_kinds(replace(REPORT, importance=late))["other sinks"].equal(at((0, 2)))
    late[..., T - 8] = 0.9
    assert token_kinds(replace(REPORT, importance=late))["other sinks"][:, T - 8].all()


def test_other_sinks_are_not_known_where_positions_were_not_measured():
    part = {name: getattr(REPORT, name)[..., :3] for name in ("importance", "raw_importance", "null", "bias_null")}
    assert list(token_kinds(replace(REPORT, positions=(0, 1, 2), **part))) == ["first token", "other tokens"]


def test_padding_has_no_kind():
    padded = TOKENS.clone()
    padded[1, 6:] = -1
    found = token_kinds(replace(REPORT, tokens=padded), token_text=word)
    assert torch.stack(list(found.values())).sum(0).equal((padded >= 0).long())


def test_norms_are_means_over_the_kind_then_over_sequences():
    residual = REPORT.residual_norms.clone()
    residual[0, 1, 3], residual[1, 1, 3] = 10.0, 20.0  # the delimiters
    values = torch.cat((REPORT.value_norms, REPORT.value_norms * 3), 2)
    two = replace(REPORT, residual_norms=residual, value_norms=values, key_norms=REPORT.key_norms.expand(-1, -1, 2, -1))
    table = norms_by_kind(two, token_text=word)
    rows = {(row["quantity"], row["block"], row["tokens"]): row["norm"] for row in table.rows}
    residuals = [rows["residual", 1, kind] for kind in ("delimiters", "first token", "other tokens")]
    assert residuals == [15.0, 5.0, 1.0]
    assert [rows["value", layer, "first token"] for layer in (0, 3)] == pytest.approx([0.2, 1.8])
    assert {block for quantity, block, _ in rows if quantity == "key"} == {0, 3}  # layers that attend
    assert len(rows) == 4 * (4 + 2 + 2)
    assert "first token 3, other sinks 1, delimiters 2" in table.note


def test_lengths_have_a_row_per_epsilon_and_report_shortest_first():
    short = replace(REPORT, importance=ALPHA / 2, protocol=replace(REPORT.protocol, length=5))
    table = sinks_by_length([REPORT, short], (0.15, 0.3))
    assert [(row["epsilon"], row["T"]) for row in table.rows] == [(0.15, 5), (0.15, T), (0.3, 5), (0.3, T)]
    assert [row["Sink_1"] for row in table.rows] == pytest.approx([0.5, 0.75, 0.25, 0.5])
    assert all(row["Sink_1 low"] <= row["Sink_1"] <= row["Sink_1 high"] and row["null"] == 0 for row in table.rows)


def test_histories_stand_below_each_other_with_gaps_where_nothing_was_watched():
    rows = [{"step": 0, "valid_loss": 4.0}, {"step": 5, "valid_loss": 3.0, "grad_norm": 0.5}]
    table = training_history({"a": rows, "b": [{"step": 0, "valid_loss": 2.0, "sink_1": 0.25}]}, "n=3")
    assert table.columns == ("model", "step", "valid_loss", "grad_norm", "sink_1")
    assert table.column("grad_norm") == [None, 0.5, None] and table.column("sink_1") == [None, None, 0.25]
    assert table.note == "n=3"
