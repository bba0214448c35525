"""Maps of one head, against the queries and keys that transformers' own modules hand over."""

import numpy as np
import pytest
import torch
from backends.zoo import VOCAB, model_of, tokens_of
from einops import einsum, rearrange
from refusals import refused
from transformers import AutoModelForCausalLM, GPT2Config

import sinkinterp as si
from sinkinterp.data.tokens import TokenSet
from sinkinterp.measurement.maps import attention_map, head_maps
from sinkinterp.metrics.instruments import MAPS, RESIDUALS
from sinkinterp.metrics.residuals import ALL_ENTRIES


@pytest.fixture(scope="module")
def seen():
    """A GPT-2 and its queries and keys, `two sequence layer head pos d`."""
    model, outputs = model_of("gpt2"), []
    maps = [block.attn.c_attn for block in model.transformer.h]
    hooks = [c_attn.register_forward_hook(lambda m, given, out: outputs.append(out)) for c_attn in maps]
    with torch.no_grad():
        model(tokens_of())
    for hook in hooks:
        hook.remove()
    qkv = rearrange(torch.stack(outputs, 1), "s layer i (three h d) -> three s layer h i d", three=3, h=4)
    return si.load(model), qkv[:2]


def test_maps_of_a_softcap_and_a_window_are_those_of_transformers_and_nothing_where_none_may_attend():
    model, layers = model_of("gemma2 with softcap"), (0, 1)
    model.set_attn_implementation("eager")
    tokens = tokens_of()[:1]
    with torch.no_grad():
        patterns = model(tokens, output_attentions=True).attentions
    found = torch.from_numpy(head_maps(si.load(model), tokens, [(layer, 3) for layer in layers]).values["weight"])
    expected = torch.stack([patterns[layer][0, 3] for layer in layers])
    n = tokens.shape[1]
    assert expected[0].eq(0).sum() > n * (n - 1) / 2  # of the future alone: layer 0 has a window
    torch.testing.assert_close(found.nan_to_num(0), expected, rtol=0, atol=1e-6)
    assert found.isnan().equal(expected == 0)


def test_maps_are_means_over_sequences_of_one_head(seen):
    subject, (q, k) = seen
    found = head_maps(subject, tokens_of(), [(0, 1), (2, 3)]).values
    q, k = q[:, 2, 3], k[:, 2, 3]
    dots, lengths = einsum(q, k, "s i d, s j d -> s i j"), q.norm(dim=-1)[:, :, None] * k.norm(dim=-1)[:, None]
    scale = q.shape[-1] ** -0.5
    future = torch.ones(q.shape[1], q.shape[1]).triu(1).bool()
    weights = (dots * scale).masked_fill(future, -torch.inf).softmax(-1)
    expected = {"weight": weights, "score": dots * scale, "cosine": dots / lengths, "norm product": lengths * scale}
    assert list(found) == list(expected)
    for name, values in expected.items():
        mean = values.mean(0).masked_fill(future, torch.nan)
        torch.testing.assert_close(torch.tensor(found[name][1]), mean, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_a_figure_has_the_heads_that_are_asked_for_before_and_after_edits(seen):
    heads, edits = {"heads": [(0, 1), (2, 1)]}, si.SwapPositions(0, 4)
    figure = attention_map(seen[0], tokens_of()[:1], **heads, edits=edits)
    assert [note.text for note in figure.layout.annotations] == [f"{seen[0].name} before", f"{seen[0].name} after"]
    names = [button.label.split(":")[0] for button in figure.layout.updatemenus[0].buttons]
    assert names == ["layer 0, head 1", "layer 2, head 1"]
    after = head_maps(seen[0], tokens_of()[:1], [(0, 1), (2, 1)], edits).values["weight"]
    for trace, weights in zip(figure.data[2:], after, strict=True):
        for row, expected in zip(trace.z, weights, strict=True):
            np.testing.assert_allclose(row, expected[: len(row)], atol=1e-4)
            assert np.isnan(expected[len(row) :]).all()


@pytest.mark.parametrize("are_named", [True, False])
def test_several_models_stand_side_by_side_each_with_its_own_maps(are_named):
    models = [model_of("gpt2"), model_of("llama")]
    given = dict(zip("ab", models, strict=True)) if are_named else models
    figure = attention_map(given, tokens_of()[:1], heads=[(1, 2)])
    titles = [note.text for note in figure.layout.annotations]
    assert len(titles) == len(figure.data) == 2 and (not are_named or titles == ["a", "b"])
    for trace, model in zip(figure.data, models, strict=True):
        (alone,) = attention_map(model, tokens_of()[:1], heads=[(1, 2)]).data
        assert trace.z == alone.z and trace.x == alone.x


def test_the_same_model_twice_has_two_panels_and_edits_act_on_each(seen):
    figure = attention_map([seen[0], seen[0]], tokens_of()[:1], heads=[(0, 1)], edits=si.SwapPositions(0, 4))
    titles = [note.text for note in figure.layout.annotations]
    assert len(set(titles)) == 4 and figure.data[0].z == figure.data[2].z and figure.data[1].z == figure.data[3].z


def test_heads_that_no_model_has_and_too_many_maps_are_refused(seen):
    refused(lambda: attention_map([seen[0], model_of("llama")], tokens_of()[:1], heads=[(0, 99)]))
    refused(lambda: attention_map([seen[0]] * 7, tokens_of()[:1]), "7")


@pytest.mark.parametrize("are_named", [True, False])
def test_texts_stand_side_by_side_each_with_its_own_tokens_and_maps(are_named):
    name, texts = "sinkinterp/text-softmax", ["The cat sat on the mat.", "Most heads look at it."]
    figure = attention_map(name, dict(zip("ab", texts, strict=True)) if are_named else texts, heads=[(1, 0)])
    titles = [note.text for note in figure.layout.annotations]
    assert titles == (["a", "b"] if are_named else [f"{i} {text}" for i, text in enumerate(texts, 1)])
    for trace, text in zip(figure.data, texts, strict=True):
        (alone,) = attention_map(name, text, heads=[(1, 0)]).data
        assert trace.z == alone.z and trace.x == alone.x and trace.y == alone.y
    assert figure.data[0].y != figure.data[1].y and figure.layout.yaxis2.showticklabels


def test_a_report_draws_the_maps_that_it_holds_as_attention_map_does(seen):
    report = si.measure(seen[0], tokens_of(), instruments=MAPS)
    ours, theirs = report.plot("attention"), attention_map(seen[0], tokens_of())
    assert len(ours.data) == len(theirs.data) == 12
    for a, b in zip(ours.data, theirs.data, strict=True):
        for row, other in zip(a.z, b.z, strict=True):
            np.testing.assert_allclose(row, other, atol=2e-4)
    assert ours.layout.updatemenus[0].active == theirs.layout.updatemenus[0].active


@pytest.mark.parametrize("heads", [{}, {"layers": [1]}])
def test_a_figure_of_512_tokens_is_at_most_2_mb_and_its_cells_hold_the_largest(heads):
    config = GPT2Config(n_embd=8, n_layer=3, n_head=1, vocab_size=VOCAB, bos_token_id=None, eos_token_id=None)
    subject, tokens = si.load(AutoModelForCausalLM.from_config(config)), torch.randint(VOCAB, (1, 512))
    figure = attention_map(subject, tokens, **heads)
    assert len(figure.to_json()) <= 2_000_000
    side = -(-512 // len(figure.data[0].z))
    (weights,) = head_maps(subject, tokens, [(1, 0)]).values["weight"]
    shown = figure.data[0 if heads else 1].z
    assert shown[7][3] == pytest.approx(np.nanmax(weights[7 * side : 8 * side, 3 * side : 4 * side]), abs=1e-4)


def test_residuals_are_taken_along_of_sequences_of_any_length(seen):
    rows = [tokens_of()[0].tolist(), tokens_of()[1, :7].tolist()]
    report = si.measure(seen[0], TokenSet.of_rows(rows), instruments=RESIDUALS)
    x = report.extra(ALL_ENTRIES)
    assert x.shape[:2] == report.residual_norms.shape[:2] and x[1, :, :, 7:].isnan().all()
    torch.testing.assert_close(x.norm(dim=2), report.residual_norms, equal_nan=True)


def test_a_map_that_reads_both_ways_is_drawn_whole_and_a_causal_one_without_later_keys():
    both, causal = (si.attention_map(x).data[0].z for x in (torch.eye(6).flip(0), torch.ones(6, 6).tril()))
    assert [[*row].index(1) for row in both] == [5, 4, 3, 2, 1, 0]
    assert [len([cell for cell in row if cell is not None]) for row in causal] == [1, 2, 3, 4, 5, 6]
