"""The sentence that comes first, and the protocol that comes last."""

from dataclasses import replace

import torch
from report.test_tables import ALPHA, REPORT, N

from sinkinterp.report.heads import strongest_head
from sinkinterp.report.readings import protocol_note, public_name, short_name
from sinkinterp.report.summary import protocol_table, sink_verdict


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
    assert protocol_note(REPORT, 0.3).endswith("else by Student's t")
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
    assert strongest_head(replace(REPORT, importance=turned)) == (3, 1)
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


def test_the_protocol_leaves_out_what_is_not_known():
    rows = {row["what"]: row["value"] for row in protocol_table(REPORT, 0.25).rows}
    assert rows["model"] == "toy" and rows["epsilon"] == "0.25" and rows["edits"] == "none" and rows["length"] == "11"
    assert "revision" not in rows and "shortest" not in rows
