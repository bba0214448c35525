import json
from dataclasses import fields, replace
from functools import partial
from html import escape
from itertools import product

import pytest
import torch
from backends.zoo import model_of, tokens_of
from refusals import refused

import sinkinterp as si
from sinkinterp.attention.sites import RESIDUAL
from sinkinterp.data.tokens import TokenSet
from sinkinterp.metrics.instruments import ALL, INSTRUMENTS
from sinkinterp.metrics.metric import NEXT_TOKEN_LOSS, Metric
from sinkinterp.metrics.residuals import MASSIVE_ENTRIES
from sinkinterp.report.heads import sinks_by_head
from sinkinterp.report.report import VIEWS, Report
from sinkinterp.report.summary import compare, sink_summary


@pytest.fixture(scope="module")
def subjects():
    return {name: si.load(model_of(name)) for name in ("gpt2", "gpt-oss with sink logits")}


def test_an_edit_is_compared_sequence_by_sequence(subjects):
    before = si.measure(subjects["gpt2"], tokens_of())
    after = si.measure(subjects["gpt2"], tokens_of(), edits=[si.SwapPositions(0, 4)])
    table = compare(before, after)
    row = {row["quantity"]: row for row in table.records()}["alpha_1, mean over heads"]
    change = (after.alpha() - before.alpha()).mean((1, 2))
    assert row["change"] == pytest.approx(change.mean().item(), abs=1e-6)
    assert row["change low"] <= row["change"] <= row["change high"]
    assert "SwapPositions" in table.note and "change by sequence" in table.note


def test_a_report_compared_with_itself_has_changed_by_nothing(subjects):
    report = si.measure(subjects["gpt-oss with sink logits"], tokens_of())
    table = compare(report, report)
    assert {row["change"] for row in table.records()} == {0.0}
    widths = {row["change high"] for row in table.records() if row["change high"] != -row["change low"]}
    assert not widths and {row["change low"] for row in table.records() if "Sink" not in str(row["quantity"])} == {0.0}


def test_reports_are_paired_by_the_hash_of_their_texts_and_never_by_place(subjects):
    def measured(sequences=5, length=17, sha256=None):
        report = si.measure(subjects["gpt2"], tokens_of()[:sequences, :length])
        return report if sha256 is None else replace(report, protocol=replace(report.protocol, source_sha256=sha256))

    one = measured()
    for first, second, note in (
        (one, measured(sha256="another"), "different sequences"),
        (one, measured(sequences=3), "different sequences, change of means"),
        (measured(sha256=""), measured(sequences=3, sha256=""), "different sequences"),
        (one, one, "the same sequences"),
        (one, measured(length=11, sha256=one.protocol.source_sha256), "the same texts as other tokens, change by seq"),
    ):
        assert note in compare(first, second).note


def test_a_summary_of_texts_of_different_lengths_repeats_no_row(subjects):
    ragged = si.measure(subjects["gpt2"], [[5, 7, 9, 11, 13], [3, 4]])
    table = ragged.summary().table
    assert ragged.importance.isnan().any()
    assert "alpha_1 of raw weights" not in table.frame["quantity"].tolist() and "null of bias alone" not in table.frame


@pytest.fixture(scope="module")
def full(subjects):
    """Sequences of 11, 5 and 7 tokens, with a slot, two positions and all instruments."""
    rows = [row[:n].tolist() for row, n in zip(tokens_of(), (11, 5, 7), strict=False)]
    return si.measure(subjects["gpt-oss with sink logits"], TokenSet.of_rows(rows), positions=(0, 6), instruments=ALL)


def by_file(report, folder):
    report.save(folder / "report.safetensors")
    return Report.load(folder / "report.safetensors")


def by_json(report, folder):
    return report.from_dict(json.loads(json.dumps(report.to_dict(), allow_nan=False)))


def same_bits(one, other):
    return one.dtype == other.dtype and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("travel", [by_file, by_json])
def test_a_report_comes_back_with_every_number_nan_and_extra(full, travel, tmp_path):
    back = travel(full, tmp_path)
    assert back.tensors().keys() == full.tensors().keys() >= {"slot_null", "extra.loss", "extra.massive_entries"}
    for name, value in full.tensors().items():
        assert same_bits(back.tensors()[name], value), name
    assert back.extra(MASSIVE_ENTRIES).dtype == back.tokens.dtype == torch.long
    assert back.importance.isnan().any() and back.extra(NEXT_TOKEN_LOSS).isnan().any()
    assert (back.positions, back.attention_layers, back.protocol) == ((0, 6), (0, 1, 2), full.protocol)
    for table in (sink_summary, sinks_by_head):
        assert repr(vars(table(back))) == repr(vars(table(full)))
    assert repr(vars(compare(full, back))) == repr(vars(compare(full, full)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int32, torch.bool])
def test_json_keeps_the_type_and_value_of_any_answer(full, dtype):
    extra = torch.tensor([[0.1, 3.0], [torch.pi, 0.0], [7.0, 1.5]]).to(dtype)
    back = by_json(replace(full, extras={"mine": extra}), None)
    assert back.extras.keys() == {"mine"} and same_bits(back.extra(Metric("mine", RESIDUAL, lambda x: x)), extra)


def test_a_table_of_rows_holds_every_head_of_every_position_but_no_padding(full):
    frame = full.to_pandas()
    columns = ["sequence", "layer", "head", "position", "importance", "raw_importance", "null", "bias_null"]
    assert frame.columns.tolist() == [*columns, "sink_rate"]
    assert len(frame) == 3 * 4 * (2 + 1 + 2)  # the second sequence has no position 6
    assert not ((frame.sequence == 1) & (frame.position == 6)).any() and not frame[columns].isna().any().any()
    for row in frame.itertuples():
        for name in columns[4:]:
            column = full.positions.index(row.position)
            assert getattr(row, name) == getattr(full, name)[row.sequence, row.layer, row.head, column].item()
    assert frame.sink_rate[frame.position == 0].mean() == pytest.approx(full.sink_rate().mean)
    assert frame.sink_rate[frame.position != 0].isna().all()
    at_epsilon = replace(full, importance=torch.full_like(full.importance, 0.3)).to_pandas()
    assert at_epsilon.sink_rate[at_epsilon.position == 0].eq(0).all()  # strictly above


@pytest.mark.parametrize("change", [
    {"tokens": torch.zeros(4, 11).long()}, {"positions": (0,)}, {"positions": (0, 3, 6)}, {"attention_layers": (0, 1)},
    {"attention_layers": (0, 1, 2, 3)}, {"extras": {"mine": torch.zeros(2)}}, {"extras": {"mine": torch.zeros(4)}},
    {"slot_null": torch.zeros(3, 3, 5)},
])  # fmt: skip
def test_a_report_of_parts_that_do_not_fit_each_other_is_refused(full, change, as_users_run_it):
    refused(lambda: replace(full, **change), "another shape")


def test_a_card_shows_sentence_map_and_numbers_in_this_order_or_a_line_without_the_first_position(full, subjects):
    card, note = full._repr_html_(), escape(full.summary().table.note)
    places = [card.index(part) for part in (escape(full.summary().sentence), "<svg", "<table", note)]
    assert places == sorted(places) and card.count(note) == 1 and str(full.summary()).count(escape(note)) <= 1
    assert full.summary()._repr_html_() == card
    later = si.measure(subjects["gpt2"], tokens_of(), positions=(4,))
    assert later._repr_html_().startswith("<p><b>&lt;Report of") and "<table" not in later._repr_html_()


def test_rows_name_the_layers_that_attend():
    report = si.measure(si.load(model_of("jamba with mamba layers")), tokens_of(), positions=(2,))
    assert report.to_pandas()[["layer", "position"]].drop_duplicates().values.tolist() == [[1, 2]]


def test_an_answer_that_was_not_taken_along_names_the_fix(subjects, full):
    report = si.measure(subjects["gpt2"], tokens_of())
    assert full.has(NEXT_TOKEN_LOSS) and not report.has(NEXT_TOKEN_LOSS)
    assert full.extra(NEXT_TOKEN_LOSS.name) is full.extra(NEXT_TOKEN_LOSS)
    refused(lambda: report.alpha(layer=2), "layer")
    refused(lambda: report.extra(NEXT_TOKEN_LOSS))


def test_a_report_of_one_sequence_and_one_layer_without_a_slot_is_loaded_as_it_was(tmp_path):
    report = si.measure(si.load(model_of("jamba with mamba layers")), tokens_of()[:1])
    loaded = by_file(report, tmp_path)
    for field in fields(report):
        ours, theirs = getattr(report, field.name), getattr(loaded, field.name)
        assert ours.equal(theirs) if isinstance(ours, torch.Tensor) else ours == theirs
    assert [p.name for p in tmp_path.iterdir()] == ["report.safetensors"]


def test_rates_count_importances_of_the_first_position_above_three_tenths_unless_told_otherwise(full):
    rates = {full.sink_rate: full.importance, full.null_sink_rate: full.null, full.bias_sink_rate: full.bias_null}
    for rate, values in rates.items():
        assert float(rate()) == pytest.approx((values[..., 0] > 0.3).float().mean().item())
        assert float(rate(0, 0.05)) == pytest.approx((values[..., 0] > 0.05).float().mean().item())
        assert float(rate(6, 0.12)) == pytest.approx((values[[0, 2], ..., 1] > 0.12).float().mean().item())
    slot = full.slot_importance
    assert full.slot_rate().mean == pytest.approx((slot > 0.3).float().mean().item())
    assert full.slot_rate(0.05).mean == pytest.approx((slot > 0.05).float().mean().item())


def test_ratios_are_norms_of_the_first_token_over_the_mean_of_the_others_that_there_are(subjects, full):
    report = si.measure(subjects["gpt2"], tokens_of())
    for ratio, norms in (
        (report.residual_ratio(), report.residual_norms),
        (report.key_ratio(), report.key_norms),
        (report.value_ratio(), report.value_norms),
        (full.residual_ratio()[1], full.residual_norms[1, :, :5]),
    ):
        torch.testing.assert_close(ratio, norms[..., 0] / norms[..., 1:].mean(-1))


def test_a_position_that_was_not_measured_is_refused_with_those_that_were(full, subjects):
    refused(lambda: full.sink_rate(position=3), "position", "0, 6")
    five = si.measure(subjects["gpt2"], tokens_of(), positions=(1, 2, 3, 4, 6))
    refused(lambda: five.sink_rate(position=0), "position", "1 to 6")


def test_a_reports_line_names_the_model_its_sizes_and_its_sink(full, subjects):
    sizes, null = f"3 layers x 4 heads, T={full.protocol.lengths}, n=3", "0.000 under uniform attention"
    rate = full.sink_rate()
    assert repr(full) == f"<Report of {full.protocol.model}: {sizes}, Sink_1 = {rate} at epsilon 0.3, {null}>"
    later = si.measure(subjects["gpt2"], tokens_of(), positions=(4,))
    assert "Sink_1" not in repr(later)


def test_what_people_look_at_first_is_at_an_epsilon_of_three_tenths(full):
    assert len(full.heads(1).records()) == 1 and len(full.heads().records()) == 12
    refused(lambda: full.heads(0), "top")
    assert full.plot() == full.plot("sinks", 0.3) != full.plot("sinks", 0.05)
    for show in (full.summary, full.heads):
        assert repr(vars(show())) == repr(vars(show(epsilon=0.3))) != repr(vars(show(epsilon=0.05)))


def test_a_reports_line_says_what_uniform_attention_gives_on_texts_as_short(subjects):
    report = si.measure(subjects["gpt2"], [[1, 2, 3], [1, 2, 3, 4]])
    assert repr(report).endswith("at epsilon 0.3, 1.000 under uniform attention>")


def test_the_instrument_that_a_view_asks_for_measures_what_it_needs(subjects):
    bare = si.measure(subjects["gpt2"], tokens_of())
    for view in VIEWS:
        if view.needs:
            message = refused(lambda view=view: view.table(bare, 0.3, str), "measure with instruments=si.measurement.")
            assert set(view.needs) <= set(INSTRUMENTS[message.rpartition(".")[2]])


def test_what_is_no_file_of_a_report_is_refused(tmp_path):
    for path in (tmp_path / "absent", tmp_path, 5, None):
        refused(partial(Report.load, path))
    for name, text in product(("r.json", "r.safetensors"), ("", "nonsense", "{}", "[]")):
        (tmp_path / name).write_text(text)
        refused(partial(Report.load, tmp_path / name), name)
