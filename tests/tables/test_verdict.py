"""The sentence that comes first, and the protocol that comes last."""

from dataclasses import replace

import torch
from tables.test_tables import ALPHA, REPORT, N

from sinkinterp.tables import protocol_table, sink_verdict, strongest_head


def test_a_sink_is_told_with_its_strength_null_and_place():
    said = sink_verdict(REPORT)
    assert said.startswith("toy has a sink on its first token: 50.0% [50.0%, 50.0%] of all (sequence, layer, head)")
    assert "more than 0.3 of their attention, where uniform attention would make it 0.0%" in said
    assert said.endswith("the head that looks at it most, 0 of layer 0, gives it 0.70 (uniform: 0.10).")
    assert "\n" not in said and said.count(".") - said.count("0.") - said.count("50.0%") < 10


def test_no_more_than_uniform_is_no_sink():
    null = torch.full_like(ALPHA, 0.9)
    assert "has no sink to speak of" in sink_verdict(replace(REPORT, null=null, bias_null=null))
    assert "has no sink to speak of" in sink_verdict(REPORT, 0.8)


def test_the_layer_is_that_of_the_model():
    turned = ALPHA.clone()
    turned[:, 1, 1, 0] = 0.95
    assert strongest_head(replace(REPORT, importance=turned)) == (3, 1)
    assert "1 of layer 3, gives it 0.95" in sink_verdict(replace(REPORT, importance=turned))


def test_a_slot_that_takes_the_sink_is_named():
    slots = {"slot_importance": torch.full((N, 2, 2), 0.6), "slot_null": torch.full((N, 2, 2), 0.2)}
    assert "takes the sink: Sink_* is 100.0% (uniform: 0.0%)." in sink_verdict(replace(REPORT, **slots))
    weak = slots | {"slot_importance": torch.full((N, 2, 2), 0.1)}
    assert "takes none either: Sink_* is 0.0%" in sink_verdict(replace(REPORT, **weak))


def test_later_positions_are_named_where_a_tenth_of_the_heads_looks_at_them_and_queries_follow():
    later = ALPHA.clone()
    later[..., 1], later[..., 3], later[..., 4] = 0.9, 0.9, 0.9
    assert sink_verdict(replace(REPORT, importance=later)).endswith(
        "later positions above epsilon in a tenth of the heads: 1, 3."
    )


def test_the_protocol_leaves_out_what_is_not_known():
    rows = {row["what"]: row["value"] for row in protocol_table(REPORT, 0.25).rows}
    assert rows["model"] == "toy" and rows["epsilon"] == "0.25" and rows["edits"] == "none" and rows["length"] == "11"
    assert "revision" not in rows and "shortest" not in rows
