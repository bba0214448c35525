"""Activation patching equals TransformerLens's, cell by cell, and doing it by hand."""

import copy
import re

import pytest
import torch
from backends.zoo import model_of
from lm.family import SPECS
from measurement.prompts import CLEAN, CORRUPTED, RIGHT, WRONG, T, difference, mapped
from refusals import refused
from transformer_lens import patching as theirs

from sinkinterp import interventions as iv
from sinkinterp.attention import sites
from sinkinterp.backends.load import load
from sinkinterp.lm.model import build
from sinkinterp.measurement.activation_patching import twin_patching
from sinkinterp.measurement.measure import measure
from sinkinterp.measurement.patching import (
    answer_difference,
    divergence_from_clean,
    first_alpha,
    logit_difference,
    loss_at,
    patch,
)


@pytest.fixture(scope="module", params=["gpt2", "llama with grouped queries"])
def subject(request):
    return load(model_of(request.param), backend="transformer_lens")


CASES = {
    "residual": (iv.ChangeResidual(), ("layer", "position"), theirs.get_act_patch_resid_pre),
    "feed-forward": (iv.ChangeMLP(), ("layer", "position"), theirs.get_act_patch_mlp_out),
    "attention output": (iv.ChangeOutputs(), ("layer", "position"), theirs.get_act_patch_attn_out),
    "heads": (iv.ChangeOutputs(), ("layer", "head"), theirs.get_act_patch_attn_head_out_all_pos),
    "heads and positions": (iv.ChangeOutputs(), None, theirs.get_act_patch_attn_head_out_by_pos),
    "patterns": (iv.Change(sites.PATTERN), ("layer", "head"), theirs.get_act_patch_attn_head_pattern_all_pos),
    "keys": (iv.ChangeKeys(), ("layer", "kv_head"), theirs.get_act_patch_attn_head_k_all_pos),
    "values": (iv.ChangeValues(), ("layer", "kv_head"), theirs.get_act_patch_attn_head_v_all_pos),
}


@pytest.mark.parametrize("case", CASES)
def test_every_cell_equals_that_of_transformer_lens(subject, case, as_users_run_it):
    site, by, expected = CASES[case]
    bridge = subject.bridge
    with torch.no_grad():
        clean, corrupted = (difference(bridge(tokens)).mean() for tokens in (CLEAN, CORRUPTED))
        cache = bridge.run_with_cache(CLEAN)[1]
        values = expected(bridge, CORRUPTED, cache, lambda logits: difference(logits).mean())
    if by is None:  # theirs is layer, position, head
        by, values = ("layer", "head", "position"), values.transpose(1, 2)
    table = mapped(subject, site=site, by=by)
    ours = torch.tensor(table.numbers("restored")).reshape(-1, *values.shape[1:])[: len(values)]
    torch.testing.assert_close(ours, ((values - corrupted) / (clean - corrupted)).float(), atol=1e-5, rtol=1e-5)


def test_the_clean_input_restores_everything_and_a_pair_of_its_own_nothing(subject):
    last = subject.shape.n_layers
    table = mapped(subject, metric=logit_difference(RIGHT, WRONG))
    cells = {(row["layer"], row["position"]): row["restored"] for row in table.records()}
    (whole,) = table.where(layer=last, position=T - 1).records()
    assert [whole[f"restored{end}"] for end in ("", " low", " high")] == pytest.approx([1, 1, 1], abs=1e-5)
    assert all(cells[last, p] == pytest.approx(0, abs=1e-5) for p in range(T - 1))
    assert len(cells) == (last + 1) * T and table.plot().data[0].z.shape == (last + 1, T)


@pytest.mark.parametrize("site", [iv.ChangeValues, iv.ChangeKeys])
def test_keys_and_values_are_addressed_by_kv_head_in_maps_and_in_edits(subject, site):
    def rows(site, by):
        return mapped(subject, site=site, by=by).records()

    every = {row["kv_head"]: row["restored"] for row in rows(site(layers=[1]), ("layer", "kv_head"))}
    assert set(every) == set(range(subject.shape.n_kv_heads)) and len(set(every.values())) == len(every)
    for head, restored in every.items():
        (row,) = rows(site(kv_heads=[(1, head)]), ("layer",))
        assert row["restored"] == pytest.approx(restored, abs=1e-6)


def test_metrics_are_those_worked_by_hand(subject):
    last = [subject.shape.n_layers]
    site = iv.ChangeResidual(layers=last, positions=[T - 1])
    with torch.no_grad():
        clean, corrupted = (subject.run(tokens).logits for tokens in (CLEAN, CORRUPTED))
    p, q = (x[:, -1].log_softmax(-1) for x in (clean, corrupted))
    expected = (p.exp() * (p - q)).sum(-1).mean().item()
    divergence = divergence_from_clean()
    note = mapped(subject, site=site, metric=divergence).note
    assert f"KL from the clean run: clean 0, corrupted {expected:.4g}" in note.replace("-0,", "0,")
    losses = [-x[:, :-1].log_softmax(-1).gather(2, CLEAN[:, 1:, None])[..., 0] for x in (clean, corrupted)]
    note = mapped(subject, site=site, metric=loss_at([2, 5])).note
    means = [f"{x[:, [1, 4]].mean().item():.4g}" for x in losses]
    assert f"loss: clean {means[0]}, corrupted {means[1]}" in note
    first = iv.ChangeResidual(layers=[0], positions=[0])
    table = mapped(subject, site=first, metric=first_alpha())
    assert len(table.frame) == 1 and "alpha_1: clean" in table.note


def test_answers_of_each_pair_are_those_of_each_pair_in_every_pass():
    plain, n = load(model_of("llama")), 2 * 2048 // T
    clean, corrupted = CLEAN.repeat(n, 1)[:n], CORRUPTED.repeat(n, 1)[:n]
    right, wrong = (torch.arange(n) % 5).tolist(), (7 + torch.arange(n) % 3).tolist()
    site = iv.ChangeResidual(layers=[1], positions=[3])
    table = mapped(plain, clean, corrupted, metric=logit_difference(right, wrong), site=site)
    logits = plain.run(clean).logits[:, -1]
    expected = logits[torch.arange(n), right] - logits[torch.arange(n), wrong]
    assert f"clean {expected.mean():.4g}" in table.note


def test_edges_to_later_keys_are_shown_where_a_prefix_lets_queries_see_them():
    model = build(SPECS["prefix_5"])
    tokens = [torch.randint(97, (2, 9), generator=torch.Generator().manual_seed(i)) for i in range(2)]
    site, by = iv.Change(sites.PATTERN, layers=[1]), ("layer", "position", "key")
    table = mapped(model, *tokens, site=site, by=by)
    pairs = {(row["position"], row["key"]) for row in table.records()}
    assert pairs == {(q, k) for q in range(9) for k in range(9) if k <= q or k < 5}


def test_an_edge_of_attention_is_one_weight_and_first_order_its_derivative(subject, as_users_run_it):
    site = iv.Change(sites.PATTERN, layers=[1], positions=[T - 1])
    table = mapped(subject, site=site, by=("layer", "head", "position", "key"))
    assert len(table.frame) == subject.shape.n_heads * T and table.plot().data[0].z.shape == (subject.shape.n_heads, T)
    clean, corrupted = (subject.run(t, reads={"p": lambda call: call.pattern()}) for t in (CLEAN, CORRUPTED))
    patterns = corrupted["p"][:, 1].clone()
    patterns[:, 2, T - 1, 3] = clean["p"][:, 1, 2, T - 1, 3]
    put = iv.Change(sites.PATTERN, iv.Put({1: patterns}), layers=[1])
    patched = subject.run(CORRUPTED, edits=[put]).logits
    ends = [difference(run.logits).mean() for run in (clean, corrupted)]
    expected = ((difference(patched).mean() - ends[1]) / (ends[0] - ends[1])).item()
    (row,) = table.where(head=2, key=3).records()
    assert row["restored"] == pytest.approx(expected, abs=1e-5)


def test_first_order_is_exact_for_the_last_residual_and_a_linear_metric(subject, as_users_run_it):
    site, last = iv.ChangeResidual(), subject.shape.n_layers
    near = CORRUPTED.clone()
    near[:, -1] = CLEAN[:, -1]
    table = mapped(subject, corrupted=near, site=site, first_order=True)
    exact, estimated = (torch.tensor(table.numbers(name)) for name in ("restored", "first order"))
    error = (exact - estimated).abs()
    assert f"wrong by {error.mean():.2g} on average and {error.max():.2g} at most" in table.note
    zeros = torch.tensor([row["position"] < T - 1 and row["layer"] == last for row in table.records()])
    assert estimated[zeros].abs().max() < 1e-6 and torch.corrcoef(torch.stack((exact, estimated)))[0, 1] > 0.5
    assert "a place drawn at random restores" in table.note and f"{2 * len(table.frame) + 5} runs" in table.note


def test_a_map_of_chosen_places_is_compared_with_the_places_that_it_leaves_out(subject):
    def patched(**chosen):
        site = iv.ChangeMLP(**chosen)
        return mapped(subject, site=site, by="layer")

    others = torch.tensor([row["restored"] for row in patched().records() if row["layer"] != 1])
    said = re.search(r"(\d+) other places drawn at random restore (\S+)", patched(layers=[1]).note)
    assert int(said[1]) == len(others) and float(said[2].rstrip(";")) == pytest.approx(others.mean().item(), rel=0.01)


def test_arguments_that_do_not_fit_are_refused(subject):
    refused(lambda: mapped(subject, by=("layer", "head")), "layer")
    refused(lambda: mapped(subject, metric=torch.mean), "metric")


def test_the_control_is_a_third_prompt_however_pairs_are_made_of_prompts(subject):
    last = {"site": iv.ChangeResidual(layers=[subject.shape.n_layers]), "by": ["layer"]}
    twice = torch.tensor([0, 1, 0, 2])
    for clean, corrupted in ((CLEAN, CLEAN.roll(1, 0)), (CLEAN, CLEAN.roll(-1, 0)), (CLEAN[twice], CORRUPTED[twice])):
        index = torch.arange(len(clean))
        right, wrong = 11 + index, 23 - 2 * index

        def score(tokens, index=index, right=right, wrong=wrong):
            logits = subject.run(tokens).logits[:, -1]
            return logits[index, right] - logits[index, wrong]

        third = [
            next(k for k in (i - 1, i - 2, i - 3) if not any((clean[k] == x[i]).all() for x in (clean, corrupted)))
            for i in range(len(clean))
        ]
        metric = logit_difference(right.tolist(), wrong.tolist())
        (control,) = mapped(subject, clean, corrupted, metric=metric, **last).numbers("control")
        whole, broken, other = (score(tokens).mean() for tokens in (clean, corrupted, clean[third]))
        assert control == pytest.approx(((other - broken) / (whole - broken)).item(), abs=1e-3)
    swapped = mapped(subject, CLEAN[:2], CLEAN[:2].flip(0), metric=logit_difference([11, 13], 17), **last)
    assert "control" not in swapped.records()[0] and "it takes a third prompt" in swapped.note


@pytest.mark.parametrize(("kind", "layer"), [(iv.ChangeResidual, 1), (iv.ChangeMLP, 0), (iv.ChangeKeys, 0)])
def test_between_two_models_a_cell_is_what_the_patch_of_one_into_the_other_does(kind, layer):
    model, site = model_of("gpt2"), kind(layers=[layer], positions=[0])
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weights in other.parameters():
            weights += 0.3 * torch.randn(weights.shape, generator=torch.Generator().manual_seed(5))
    source, twin = load(model, name="source"), load(other, name="twin")
    table = twin_patching(source, twin, CLEAN, site=site, by=["layer"], metric=first_alpha())
    whole, broken, patched = (
        measure(subject, CLEAN, edits=edits).alpha().mean()
        for subject, edits in ((source, ()), (twin, ()), (twin, patch(site, source, CLEAN)))
    )
    assert abs(patched - broken) > 1e-4 and "source (clean) into twin (corrupted)" in table.note
    assert table.records()[0]["restored"] == pytest.approx(float((patched - broken) / (whole - broken)), rel=1e-3)


def letters(vocab):
    """The two functions of a tokenizer of letters; the place of a letter in `vocab` is its id."""
    return lambda text: [*map(vocab.index, text)], lambda ids: "".join(vocab[i % len(vocab)] for i in ids)


def test_two_models_that_read_a_text_as_different_tokens_are_refused():
    models = [load(model_of("gpt2"), tokenizer=letters(vocab)) for vocab in ("ab", "ba")]
    refused(lambda: twin_patching(*models, "abba"), "different tokens")


def test_two_texts_of_one_token_are_a_metric():
    subject = load(model_of("gpt2"), tokenizer=letters("...a.b"))
    both = [logit_difference(3, 5), answer_difference(subject, "a", "b")]
    maps = [mapped(subject, metric=metric) for metric in both]
    assert maps[0].numbers("restored") == maps[1].numbers("restored")
    refused(lambda: answer_difference(subject, "ab", "b"), "2 tokens")
