"""si.sweep: interventions beside the untouched model and beside random ones of equal size."""

import pytest
import torch
from backends.zoo import model_of, subject_of, tokens_of
from refusals import refused

import sinkinterp as si
from sinkinterp.interventions import BiasColumn, ChangeValues, RemoveColumn, Scale, Temperature, Zero, ZeroKeyBias
from sinkinterp.measurement.sweep import (
    ALL,
    CONTROL,
    FAR,
    HIDDEN,
    LOGIT,
    NEAR,
    TIMES,
    WITH,
    changes,
    first_sink_rate,
    importance,
    loss,
    spread,
    with_other_token,
    without_sink,
)
from sinkinterp.metrics.estimates import change_of_rates, estimate
from sinkinterp.table import BLOCK, EDIT, LOSS

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


AT = 5


@pytest.mark.parametrize("name", ["gpt2", "mistral with a window"])
@torch.no_grad()
def test_without_edits_changes_are_those_of_two_plain_passes_of_transformers(name):
    subject, tokens = subject_of(name), tokens_of()
    changed = with_other_token(tokens, AT)
    model = model_of(name)
    mask, finals = torch.ones_like(tokens), []
    blocks = model.transformer.h if name == "gpt2" else model.model.layers
    handle = blocks[-1].register_forward_hook(lambda module, args, y: finals.append(y if torch.is_tensor(y) else y[0]))
    before, after = (model(x, attention_mask=mask, output_hidden_states=True) for x in (tokens, changed))
    handle.remove()
    x, y = (torch.stack([*run.hidden_states[:-1], end], 1) for run, end in zip((before, after), finals, strict=True))
    expected = ((y - x).norm(dim=-1) / x.norm(dim=-1))[:, :, AT + 1 :]
    found, loss = changes(subject, tokens, changed, AT)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    logits = before.logits[:, :-1].transpose(1, 2)
    plain = torch.nn.functional.cross_entropy(logits, tokens[:, 1:], reduction="none").mean(1)
    torch.testing.assert_close(loss, plain, rtol=1e-4, atol=1e-5)
    table = spread(subject, tokens, position=AT, edits={WITH: []})
    rows = table.where(**{BLOCK: 3})
    assert rows.numbers(ALL)[0] == pytest.approx(expected[:, 3].mean().item(), rel=1e-3)
    assert rows.numbers(NEAR)[0] == pytest.approx(expected[:, 3, :8].mean().item(), rel=1e-3)
    assert rows.numbers(FAR)[0] == pytest.approx(expected[:, 3, -4:].mean().item(), rel=1e-3)
    assert table.plot().data


def test_by_default_the_sink_is_taken_away_in_two_ways_beside_a_control():
    table = spread(subject_of("gpt2"), tokens_of())
    assert [*dict.fromkeys(table.frame[EDIT].tolist())] == [WITH, HIDDEN, LOGIT, CONTROL] == [*without_sink(2)]
    first, *others = (table.where(**{BLOCK: 3, EDIT: name}).records()[0] for name in without_sink(2))
    assert first[TIMES] == 1 and all(row[TIMES] == pytest.approx(row[ALL] / first[ALL], rel=1e-4) for row in others)
    assert table.where(**{BLOCK: 0}).frame[TIMES].isna().tolist() == [True] * 4  # the change begins in block 0
    assert len(table.frame) == 4 * 4 and len(set(table.numbers(LOSS))) == 4


def test_the_other_token_is_another_one_of_the_texts_at_this_position_alone():
    tokens = tokens_of()
    changed = with_other_token(tokens, AT, seed=3)
    assert (changed != tokens).nonzero().tolist() == [[i, AT] for i in range(len(tokens))]
    assert all(token in tokens[:, AT:] for token in changed[:, AT]) and changed.equal(with_other_token(tokens, AT, 3))


@pytest.mark.parametrize("position", [0, 16, "2"])
def test_a_position_that_nothing_follows_and_texts_of_one_token_are_refused(position):
    refused(lambda: spread(subject_of("gpt2"), tokens_of(), position=position))
    refused(lambda: spread(subject_of("gpt2"), torch.full((2, 7), 5)))
