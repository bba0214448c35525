"""si.sinks: what a measurement finds, from attention weights that another library computed."""

import pytest
import torch
from backends.zoo import model_of, tokens_of
from refusals import refused
from transformer_lens.ActivationCache import ActivationCache

import sinkinterp as si
from sinkinterp.backends.bridge import bridge_of
from sinkinterp.metrics.importance import PAPER


@torch.no_grad()
def test_sinks_of_weights_are_those_that_are_measured_whatever_they_came_from():
    model, tokens = model_of("gpt2"), tokens_of()
    model.set_attn_implementation("eager")
    output = model(tokens, output_attentions=True)
    table, report = si.sinks(output.attentions, position=2), si.measure(model, tokens, convention=PAPER)
    everything, *heads = table.records()
    sink = report.sink_rate(2)
    found = [everything[f"Sink_3{end}"] for end in ("", " low", " high")]
    assert found == pytest.approx([sink.mean, sink.low, sink.high], abs=1e-6)
    assert [row["alpha_3"] for row in heads] == pytest.approx(report.alpha(2).mean(0).flatten().tolist(), abs=1e-5)
    assert [(row["layer"], row["head"]) for row in heads] == [(i, j) for i in range(3) for j in range(4)]
    assert everything["null"] == pytest.approx(report.null_alpha(2).mean().item(), abs=1e-6)
    _, cache = bridge_of(model).run_with_cache(tokens)
    assert isinstance(cache, ActivationCache)
    for given in (output, list(output.attentions), cache):
        assert si.sinks(given, position=2).numbers("alpha_3") == pytest.approx(table.numbers("alpha_3"), abs=1e-6)
    assert si.sinks([output.attentions[1]], position=2).numbers("alpha_3")[1:] == pytest.approx(
        [r["alpha_3"] for r in heads[4:8]]
    )


@torch.no_grad()
def test_weights_of_several_texts_and_layers_have_the_rate_and_interval_that_are_measured():
    model, tokens = model_of("gpt2"), tokens_of()
    assert len(tokens) not in (1, model.config.n_layer)
    weights, report = si.attention_weights(model, tokens), si.measure(model, tokens, convention=PAPER)
    below, above = report.alpha(1).flatten().sort().values[29:31].tolist()
    assert report.alpha(1).numel() == 60 and above - below > 1e-5
    epsilon = (below + above) / 2  # at an alpha itself, rounding decides
    want, rate = report.sink_rate(1, epsilon), si.sink_rate(weights, position=1, epsilon=epsilon)
    everything, *heads = si.sinks(weights, position=1, epsilon=epsilon).records()
    sinks = [everything[f"Sink_2{end}"] for end in ("", " low", " high")]
    assert [rate.mean, rate.low, rate.high] == pytest.approx([want.mean, want.low, want.high], abs=1e-6)
    assert sinks == pytest.approx([want.mean, want.low, want.high], abs=1e-6) and want.low < want.high
    assert [row["alpha_2"] for row in heads] == pytest.approx(report.alpha(1).mean(0).flatten().tolist(), abs=1e-5)


def test_a_first_axis_that_may_be_texts_or_layers_is_refused_and_each_fix_works():
    weights = torch.rand(3, 2, 5, 5).tril().softmax(-1).tril()
    for read in (si.sinks, si.sink_rate, si.attention_map):
        refused(lambda read=read: read(weights), "weights[None]")
    layers, texts = (si.sinks(x).records() for x in (weights[None], weights[:, None]))
    assert (len(layers), len(texts)) == (1 + 3 * 2, 1 + 2)
    assert si.sinks(weights, attention_mask=torch.ones(3, 5)).records() == texts
    assert si.sinks(weights, attention_mask=torch.ones(1, 5)).records() == layers


GENERATIONS = (
    ("llama", {}), ("llama", {"cache_implementation": "static"}), ("llama", {"use_cache": False}),
    ("mistral with a window", {}), ("gemma3", {}), ("gpt-oss with sink logits", {}),
)  # fmt: skip


@pytest.mark.parametrize("name, options", GENERATIONS, ids=str)
@torch.no_grad()
def test_the_steps_of_a_generation_have_the_sinks_of_the_text_that_it_made(name, options):
    model, length = model_of(name), {"min_new_tokens": 5, "max_new_tokens": 5, "pad_token_id": 0, "do_sample": False}
    model.set_attn_implementation("eager")
    output = model.generate(tokens_of(7), output_attentions=True, return_dict_in_generate=True, **length, **options)
    want = si.sinks(model(output.sequences[:, :-1], output_attentions=True), position=1)
    for given in (output, output.attentions, [list(step) for step in output.attentions]):
        found = si.sinks(given, position=1)
        assert "T=11" in found.note
        assert found.numbers("alpha_2") == pytest.approx(want.numbers("alpha_2"), abs=1e-5)
        assert found.numbers("null") == pytest.approx(want.numbers("null"), abs=1e-5)


def test_a_dictionary_without_names_of_hooks_holds_no_weights():
    for names in ((7, 3), ("a", "b")):
        refused(lambda names=names: si.sinks(dict.fromkeys(names, torch.eye(5).expand(1, 2, 5, 5))))


def test_a_pattern_by_hand():
    pattern = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], [0.75, 0, 0.25]])[None, None]
    everything, head = si.sinks(pattern, epsilon=0.7).records()
    assert head["alpha_1"] == pytest.approx(0.75) and head["Sink_1"] == 1
    assert everything["null"] == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    assert si.sinks(-2 * pattern, position=2).records()[1]["alpha_3"] == pytest.approx(0.25)  # shares of magnitudes


def test_where_one_row_exceeds_one_the_weights_of_all_layers_are_proxies_and_the_note_says_so():
    long = torch.tensor([[1.0, 0, 0], [0.5, 1.5, 0], [0.75, 0, 0.25]])[None, None]
    short = torch.tensor([[0.5, 0, 0], [0.1, 0.3, 0], [0.1, 0.1, 0.3]])[None, None]
    together, alone = si.sinks([long, short]), si.sinks(short)
    assert "proxies" in together.note and "proxies" not in alone.note
    assert [row["alpha_1"] for row in together.records()[1:]] == pytest.approx([2 / 3, (1 + 1 / 4 + 1 / 5) / 3])
    assert alone.records()[1]["alpha_1"] == pytest.approx(0.7 / 3)  # a slot has the rest
    assert si.sinks([long.numpy(), short.numpy()]).records() == together.records()


def test_rows_of_padding_may_hold_anything():
    pattern = torch.tensor([[torch.nan] * 3, [0, 1.0, 0], [0, 0.25, 0.75]])[None, None]
    assert si.sinks(pattern, attention_mask=[[0, 1, 1]]).records()[1]["alpha_1"] == pytest.approx((1 + 0.25) / 2)


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
def test_sinks_of_a_padded_batch_are_those_of_its_texts(side):
    model, tokens = model_of("gpt2"), tokens_of()[:2]
    model.set_attn_implementation("eager")
    short = tokens[:1, 2:]
    padded = torch.nn.functional.pad(short, (2, 0) if side == "left" else (0, 2))
    mask = torch.stack([torch.nn.functional.pad(torch.ones(short.shape[1]), (2, 0) if side == "left" else (0, 2)),
                        torch.ones(tokens.shape[1])])  # fmt: skip
    places = (mask.cumsum(-1) - 1).clamp(min=0).long()
    output = model(torch.cat((padded, tokens[1:])), attention_mask=mask, position_ids=places, output_attentions=True)
    alone = [si.sinks(model(ids, output_attentions=True), position=1) for ids in (short, tokens[1:])]
    expected = torch.tensor([table.numbers("alpha_2") for table in alone]).mean(0)
    table = si.sinks(output, position=1, attention_mask=mask)
    torch.testing.assert_close(torch.tensor(table.numbers("alpha_2")), expected, atol=1e-5, rtol=0)
    assert table.records()[0]["null"] == pytest.approx(sum(one.records()[0]["null"] for one in alone) / 2)


@torch.no_grad()
def test_the_null_of_a_window_is_that_of_a_window():
    model, tokens = model_of("mistral with a window"), tokens_of()
    model.set_attn_implementation("eager")
    assert model.config.sliding_window < tokens.shape[1]
    table, report = si.sinks(model(tokens, output_attentions=True)), si.measure(model, tokens, convention=PAPER)
    assert table.records()[0]["null"] == pytest.approx(report.null_alpha().mean().item(), abs=1e-6)
    assert table.records()[0]["alpha_1"] == pytest.approx(report.alpha().mean().item(), abs=1e-6)


@torch.no_grad()
def test_the_null_of_a_head_is_that_of_its_own_layer():
    model, tokens = model_of("gemma2 with softcap"), tokens_of()
    model.set_attn_implementation("eager")
    heads = si.sinks(model(tokens, output_attentions=True)).records()[1:]
    report = si.measure(model, tokens, convention=PAPER)
    expected = report.null_alpha().expand_as(report.alpha()).mean(0).flatten().tolist()
    assert len({round(null, 6) for null in expected}) > 1  # layers with a window beside layers without
    assert [row["null"] for row in heads] == pytest.approx(expected, abs=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral with a window", "gemma3", "gpt-oss with sink logits"])
def test_padding_without_its_mask_is_refused_in_every_family(name, side):
    model, tokens = model_of(name), tokens_of()[:2]
    model.set_attn_implementation("eager")
    mask = torch.ones_like(tokens)
    mask[1, slice(2) if side == "left" else slice(-2, None)] = 0
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    output = model(tokens, attention_mask=mask, position_ids=places, output_attentions=True)
    refused(lambda: si.sinks(output))
    alone = si.sinks(model(tokens[1:, mask[1] == 1], output_attentions=True))
    padded = si.sinks([layer[1:] for layer in output.attentions], attention_mask=mask[1:])
    assert padded.numbers("alpha_1") == pytest.approx(alone.numbers("alpha_1"), abs=1e-5)


def test_tokens_that_nothing_sees_are_tokens_where_the_mask_says_so():
    pattern = torch.tensor([[0.0, 0, 0], [0, 1.0, 0], [0, 0.25, 0.75]])[None, None]
    refused(lambda: si.sinks(pattern))
    assert si.sinks(pattern, attention_mask=[[1, 1, 1]]).records()[1]["alpha_1"] == 0


REFUSED = {
    "no attention weights": (),
    "without a cache, a slot's column": [torch.rand(2, 3, 5, 6)],
    "not finite; give weights, not scores": torch.full((1, 1, 2, 2), -torch.inf),
    "eager": [],
    "is NoneType": [None],
}


@pytest.mark.parametrize("words", REFUSED)
def test_an_object_without_a_pattern_is_refused_in_one_line(words):
    refused(lambda: si.sinks(REFUSED[words]), words)


@pytest.mark.parametrize("mask", [[[1, 0, 1]], [[0, 0, 0]], [[1, 1]], [[-9.0, 1, 1]], [[1], [1, 0]], "yes"])
def test_a_mask_that_is_no_padding_is_refused(mask):
    refused(lambda: si.sinks(torch.eye(3)[None, None], attention_mask=mask), "attention_mask")
