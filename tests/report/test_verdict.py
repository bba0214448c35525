"""The sentence that comes first, and the protocol that comes last."""

from dataclasses import replace

import pytest
import torch
from report.test_tables import ALPHA, REPORT, TOKENS, WITH, N, T
from sinkinterp._experiments.shared.lengths import sinks_by_length

from sinkinterp.metrics.residuals import MASSIVE_ENTRIES
from sinkinterp.report.explanation import graph
from sinkinterp.report.heads import sinks_by_token
from sinkinterp.report.norms import norms_by_kind, token_kinds
from sinkinterp.report.readings import protocol_note, public_name, short_name
from sinkinterp.report.report import NAMED, VIEWS, views_of
from sinkinterp.report.summary import compare, protocol_table, sink_summary, sink_verdict, sinks_by
from sinkinterp.runs.trained import training_history


def test_a_sink_is_told_with_its_strength_null_and_place():
    said = sink_verdict(REPORT)
    assert said.startswith("toy has a sink on its first token: it receives 0.35 of the attention, mean over heads")
    assert "(uniform attention: 0.10), and 50.0% [12.5%, 87.5%] of all (sequence, layer, head) give it more" in said
    assert "more than 0.3 (uniform: 0.0%)" in said
    assert said.endswith("Head 0 of layer 0 looks at it most: it gives 0.70 (uniform: 0.10).")
    assert "\n" not in said and said.count(".") - said.count("0.") - said.count("5%") - said.count("50.0%") < 10


def one_text(alpha, null):
    """A report of one sequence in which every head gives each position `alpha`, and uniform attention `null`."""
    first = {name: value[:1] for name, value in vars(REPORT).items() if isinstance(value, torch.Tensor)}
    nulls = {name: torch.full_like(ALPHA[:1], null) for name in ("null", "bias_null")}
    protocol, values = replace(REPORT.protocol, sequences=1), alpha.expand(ALPHA[:1].shape)
    return replace(REPORT, **first | nulls | {"importance": values}, protocol=protocol, extras={})


def test_one_text_has_no_interval_and_its_mean_must_be_well_above_that_of_uniform_attention():
    near = torch.full_like(ALPHA[:1], 0.17)
    near[0, 0, 0] = 0.4  # one head of four has a sink; the mean is little above 0.18
    said = sink_verdict(one_text(near, 0.18))
    assert "has a sink on its first token in some heads only, and none in the mean, in this one text" in said
    assert "receives 0.23 of the attention, mean over heads (uniform attention: 0.18), and 25.0% of all (layer" in said
    assert "[" not in said
    assert "has a sink on its first token, in this one text" in sink_verdict(one_text(torch.tensor(0.5), 0.18))
    assert "no sink to speak of on its first token, in this" in sink_verdict(one_text(torch.tensor(0.2), 0.18))


def test_a_note_promises_intervals_only_where_there_are_several_texts():
    assert protocol_note(REPORT, 0.3).endswith("else Student's t (quotients: Fieller's)")
    one = protocol_note(one_text(torch.tensor(0.5), 0.1), 0.3)
    assert "one text, so no intervals" in one and "95%" not in one


def test_pages_name_a_model_without_the_path_of_this_machine():
    for path in ("/home/x/models/gpt2", "./models/gpt2", "C:\\models\\gpt2", "a/b/gpt2/", "~/gpt2"):
        assert public_name(path) == short_name(path) == "gpt2"
    assert (public_name("org/gpt2"), short_name("org/gpt2")) == ("org/gpt2", "gpt2")
    assert public_name("gpt2") == "gpt2" and public_name("/") == "/"


def test_no_more_than_uniform_is_no_sink():
    null = torch.full_like(ALPHA, 0.9)
    assert "has no sink to speak of" in sink_verdict(replace(REPORT, null=null, bias_null=null))
    assert "has no sink to speak of" in sink_verdict(REPORT, 0.8)


def test_the_layer_is_that_of_the_model():
    turned = ALPHA.clone()
    turned[:, 1, 1, 0] = 0.95
    assert "Head 1 of layer 3 looks at it most: it gives 0.95" in sink_verdict(replace(REPORT, importance=turned))


def test_a_slot_that_takes_the_sink_is_named():
    slots = {"slot_importance": torch.full((N, 2, 2), 0.6), "slot_null": torch.full((N, 2, 2), 0.2)}
    assert "takes the sink: Sink_* is 100.0% (uniform: 0.0%)." in sink_verdict(replace(REPORT, **slots))
    weak = slots | {"slot_importance": torch.full((N, 2, 2), 0.1)}
    assert "takes none either: Sink_* is 0.0%" in sink_verdict(replace(REPORT, **weak))


def test_later_positions_are_named_where_a_tenth_of_the_heads_looks_at_them_and_queries_follow():
    later = ALPHA.clone()
    later[..., 1], later[..., 3], later[..., 4] = 0.9, 0.9, 0.9
    assert sink_verdict(replace(REPORT, importance=later)).endswith(
        "; positions 1 and 3 are sinks too (positions from 0, in a tenth of the heads or more)."
    )
    said = sink_verdict(
        replace(one_text(later[:1], 0.18), tokens=REPORT.tokens[:1] * 0 + 7), token_text=" word{}".format
    )
    assert "; tokens 1, 'word7', 2, 'word7', and 3, 'word7', are sinks too" in said
    later[..., 2:4] = 0
    said = sink_verdict(one_text(later[:1], 0.18), token_text=lambda token: "the ")
    assert "; token 1, 'the', is a second sink (positions from 0, in a tenth of the heads or more)." in said


def moved(report):
    """The report with its sink on position 3, and none on the first token."""
    values = report.importance.clone()
    values[..., 3], values[..., 0] = 0.9, report.null[..., 0]
    return replace(report, importance=values)


def test_a_sink_that_moved_is_said_first_and_has_its_row():
    there = moved(replace(REPORT, null=REPORT.null * 0 + 0.1, bias_null=REPORT.null * 0 + 0.1))
    said = sink_verdict(there)
    assert said.startswith("toy has its sink on position 3 (p4, Sink_4), and none to speak of on its first token: it")
    assert "receives 0.90" in said and "second sink" not in said
    rows = {row["quantity"]: row["value"] for row in sink_summary(there).records()}
    assert rows["Sink_4 at epsilon 0.3 (position 3, p4)"] == 1 and rows["Sink_1 at epsilon 0.3 (position 0)"] == 0
    assert not any(name.startswith("Sink_4") for name in sink_summary(REPORT).frame["quantity"])
    change = compare(REPORT, there).where(quantity="Sink_4 at epsilon 0.3 (position 3, p4)").records()
    assert change[0]["after"] == 1 and change[0]["before"] < 1


def test_two_models_of_which_one_begins_with_bos_are_told_apart_in_the_first_line_and_a_row():
    with_bos = replace(REPORT, protocol=replace(REPORT.protocol, bos="<s> first"))
    table = compare(REPORT, with_bos)
    assert '. Of the two, "after" alone begins with BOS: read both with bos="never", or "always"' in table.title
    row = table.records()[0]
    assert (row["quantity"], row["before"], row["after"], row["change"]) == ("begins with BOS (1: yes)", 0, 1, 1)
    assert "BOS" not in compare(with_bos, with_bos).title + compare(REPORT, REPORT).title


def test_the_title_of_a_comparison_is_its_finding_with_its_interval():
    high, low = (replace(REPORT, importance=torch.full_like(ALPHA, alpha)) for alpha in (0.9, 0.1))
    high.importance[2, 1, 1, 0] = 0.1  # one head of one sequence
    for before, after, words in (
        (high, low, ("Sink_1 falls from 0.917 [", "] (a) to 0 [", "] (b), by -0.917 [-1.000, -0.558]")),
        (low, high, ("Sink_1 rises from 0 [", "] (a) to 0.917 [", "] (b), by 0.917 [0.558, 1.000]")),
        (low, low, ("Sink_1: 0 [", "] (a), 0 [", "] (b), change 0 [", "], whose interval holds 0")),
        (*(one_text(torch.tensor(x), 0.1) for x in (0.9, 0.1)), ("Sink_1: 1.000 (a), 0 (b), change -1.000, without",)),
    ):
        title = compare(before, after, names=("a", "b")).title
        assert title.startswith(words[0]) and all(part in title for part in words)
    assert sinks_by("model", {"x": low, "y": high}).title.startswith("Sink_1: 0 [")


def test_the_protocol_leaves_out_what_is_not_known():
    rows = {row["what"]: row["value"] for row in protocol_table(REPORT, 0.25).records()}
    assert rows["model"] == "toy" and rows["epsilon"] == "0.25" and rows["edits"] == "none" and rows["length"] == "11"
    assert "revision" not in rows and "shortest" not in rows


EVERYTHING = replace(REPORT, extras=REPORT.extras | WITH.extras)


def test_every_view_makes_a_table_that_is_shown_somewhere():
    for view in views_of(EVERYTHING):
        assert view.in_terminal or view.heading or view.name
        if view.name != "lengths":  # whose sequences differ in length
            table = view.table(EVERYTHING, 0.3, str)
            assert table.records() and "n=3, T=11" in table.note
            assert not view.name or table.plot().data
    assert len(NAMED) == sum(view.name != "" for view in VIEWS)  # no name stands twice


def test_a_report_of_some_positions_has_the_views_that_these_positions_make():
    columns = ("importance", "raw_importance", "null", "bias_null")
    for positions in ((0,), (0, 2), tuple(range(T))):
        some = {name: getattr(EVERYTHING, name)[..., list(positions)] for name in columns}
        report = replace(EVERYTHING, positions=positions, **some)
        shown = [view for view in views_of(report) if view.name != "lengths"]
        assert all(view.table(report, 0.3, str).records() for view in shown)
        assert MASSIVE_ENTRIES in {metric for view in shown for metric in view.needs}
        assert (NAMED["positions"] in shown) == (len(positions) > 1)
        assert any(view.table is sinks_by_token for view in shown) == (len(positions) == T)


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
    rows = {(row["quantity"], row["block"], row["tokens"]): row["norm"] for row in table.records()}
    residuals = [rows["residual", 1, kind] for kind in ("delimiters", "first token", "other tokens")]
    assert residuals == [15.0, 5.0, 1.0]
    assert [rows["value", layer, "first token"] for layer in (0, 3)] == pytest.approx([0.2, 1.8])
    assert {block for quantity, block, _ in rows if quantity == "key"} == {0, 3}  # layers that attend
    assert len(rows) == 4 * (4 + 2 + 2)
    assert "first token 3, other sinks 1, delimiters 2" in table.note


def test_lengths_have_a_row_per_epsilon_and_report_shortest_first():
    short = replace(REPORT, importance=ALPHA / 2, protocol=replace(REPORT.protocol, length=5))
    table = sinks_by_length([REPORT, short], (0.15, 0.3))
    assert [(row["epsilon"], row["T"]) for row in table.records()] == [(0.15, 5), (0.15, T), (0.3, 5), (0.3, T)]
    assert [row["Sink_1"] for row in table.records()] == pytest.approx([0.5, 0.75, 0.25, 0.5])
    assert all(row["Sink_1 low"] <= row["Sink_1"] <= row["Sink_1 high"] and row["null"] == 0 for row in table.records())


def test_histories_stand_below_each_other_with_gaps_where_nothing_was_watched():
    rows = [{"step": 0, "valid_loss": 4.0}, {"step": 5, "valid_loss": 3.0, "grad_norm": 0.5}]
    table = training_history({"a": rows, "b": [{"step": 0, "valid_loss": 2.0, "sink_1": 0.25}]}, "n=3")
    assert [*table.frame] == ["model", "step", "valid_loss", "grad_norm", "sink_1"]
    assert [row["grad_norm"] for row in table.records()] == [None, 0.5, None]
    assert [row["sink_1"] for row in table.records()] == [None, None, 0.25]
    assert table.note == "n=3"


EDGES = [
    ("neuron 1.7", "MLP 1", 0.9), ("neuron 1.2", "MLP 1", 0.2), ("MLP 1", "head 3.0", 0.6), ("MLP 1", "head 3.1", 0.5),
    ("MLP 2", "head 3.0", 0.2), ("embedding", "head 5.2", 0.3), ("MLP 1", "head 5.2", 0.7),
]  # fmt: skip


def test_a_name_beside_a_node_has_no_node_of_its_row_and_no_line_on_its_side():
    nodes = graph(EDGES, "", "").data[-1]
    at = dict(zip(nodes.text, zip(nodes.x, nodes.y, strict=True), strict=True))
    side = dict(zip(nodes.text, nodes.textposition, strict=True))
    assert side["neuron 1.7"] == "middle left" and side["neuron 1.2"] == "middle right"
    assert all(side[end] == "bottom center" for end in ("head 3.0", "head 3.1", "head 5.2"))
    for name, (x, y) in at.items():
        beside = [other for other, (_, row) in at.items() if row == y and other != name]
        if side[name] != "bottom center":
            assert all((at[other][0] > x) == (side[name] == "middle left") for other in beside)
