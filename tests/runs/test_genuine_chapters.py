"""Chapters on genuine models: what biases do, windows and BOS, the atlas; and which models a chapter runs."""

import pytest
import torch
from backends.zoo import SIZES, model_of
from sinkinterp._experiments.shared.cases import Case, Named, OnModels, open_case
from sinkinterp._experiments.shared.genuine import MODELS, Has, models_with
from sinkinterp._experiments.shared.rules import above, of_each
from transformers import Gemma3ForCausalLM, Gemma3TextConfig
from transformers.models.qwen2.modeling_qwen2 import apply_rotary_pos_emb

import sinkinterp as si
from experiments.shared.biases import PARTS, AsFarAtRandom, four_parts, seen
from experiments.shared.windows import FIRST, KINDS, WINDOWS_FIRST, delimiters_of, shares
from sinkinterp._experiments import experiment_names, load_module
from sinkinterp.attention.call import AttentionCall
from sinkinterp.attention.sites import HeadWeights
from sinkinterp.backends.frozen import frozen
from sinkinterp.data.choices import Bos, Scale
from sinkinterp.data.tokens import random_tokens
from sinkinterp.files import seal
from sinkinterp.interventions import RemoveColumn, ZeroKeyBias, ZeroQueryBias, ZeroValueBias
from sinkinterp.runs.experiment import Outcome, Rule, Scope, load_experiment
from sinkinterp.table import Table

TOKENS = torch.randint(97, (2, 11), generator=torch.Generator().manual_seed(0))


def calls_of(name):
    subject = si.load(model_of(name))
    with frozen(subject, TOKENS) as run:
        zeros = torch.zeros_like(run.trace["x"][:, 0])
        return subject, {layer: (call, run.call(layer, zeros)) for layer, call in run.calls.items()}


@pytest.mark.parametrize("name", ["qwen2", "gpt2", "llama with biases"])
def test_four_parts_add_up_to_the_score(name):
    for call, biases in calls_of(name)[1].values():
        torch.testing.assert_close(four_parts(call, biases).sum(0), call.scores(), atol=1e-4, rtol=1e-4)


def test_parts_are_those_of_the_weights_rotated_by_transformers():
    subject, calls = calls_of("qwen2")
    attention, (call, biases) = subject.model.model.layers[1].self_attn, calls[1]
    b_q = attention.q_proj.bias.view(1, 4, 1, 12).expand(1, 4, 11, 12)
    b_k = attention.k_proj.bias.view(1, 2, 1, 12).expand(1, 2, 11, 12)
    cos, sin = subject.model.model.rotary_emb(b_q, torch.arange(11)[None])
    b_q, b_k = apply_rotary_pos_emb(b_q, b_k, cos, sin)
    k = (call.k - b_k).repeat_interleave(2, 1)
    expected = torch.stack((b_q @ k.mT, b_q @ b_k.repeat_interleave(2, 1).mT.expand(2, 4, 12, 11))) * 12**-0.5
    torch.testing.assert_close(four_parts(call, biases)[[1, 3]], expected, atol=1e-5, rtol=1e-5)


def test_softmax_sees_no_key_bias_without_rotation_and_sees_it_with_rotation():
    for name, is_rotary in (("gpt2", False), ("qwen2", True)):
        call, biases = calls_of(name)[1][2]
        of_parts = dict(zip(PARTS, seen(four_parts(call, biases), call).flatten(1).amax(1).tolist(), strict=True))
        for part in ("q.b_k", "b_q.b_k"):
            assert (of_parts[part] > 1e-2) == is_rotary and (of_parts[part] < 1e-5) == (not is_rotary)
        assert of_parts["q.k"] > 1e-2 and of_parts["b_q.k"] > 1e-2


def test_where_queries_are_biases_alone_these_make_all_of_the_lift(tmp_path):
    model = model_of("qwen2")
    for layer in model.model.layers:
        layer.self_attn.q_proj.weight.data.zero_()
    model.save_pretrained(tmp_path)
    module = load_module("what_biases_do")
    heads = module.head_rows(open_case(str(tmp_path)), TOKENS)
    for row in (row for row in heads if row["row"] == "head"):
        assert row["lift q.k"] == pytest.approx(0, abs=1e-5) == row["lift q.b_k"]
        assert row["lift"] == pytest.approx(row["lift b_q.k"] + row["lift b_q.b_k"], abs=1e-4)


@pytest.mark.parametrize(
    ("edit", "method"),
    [(ZeroQueryBias, "query_weights"), (ZeroKeyBias, "key_weights"), (ZeroValueBias, "value_weights")],
)
def test_a_control_moves_each_heads_bias_as_far_as_the_edit_and_elsewhere(edit, method):
    weights = HeadWeights(torch.zeros(3, 5, 7), torch.randn(3, 5, generator=torch.Generator().manual_seed(1)))
    control = AsFarAtRandom(edit(layers=[2]))
    moved = getattr(control, method)(2, weights)
    step = moved.bias - weights.bias
    torch.testing.assert_close(step.norm(dim=-1), weights.bias.norm(dim=-1))
    assert torch.cosine_similarity(step, -weights.bias, dim=-1).abs().max() < 0.99
    assert getattr(control, method)(1, weights) is weights
    others = {"query_weights", "key_weights", "value_weights"} - {method}
    assert all(getattr(control, other)(2, weights) is weights for other in others)


def uniform_call(window=None):
    q = torch.zeros(1, 2, 7, 3)
    mask = torch.ones(7, 7, dtype=torch.bool).tril()[None, None]
    return AttentionCall(0, q, q, q, scale=1.0, mask=mask if window is None else mask.triu(1 - window))


@pytest.mark.parametrize("window", [None, 3])
def test_equal_scores_give_each_kind_of_key_what_uniform_attention_does(window):
    is_bos, is_delimiter = torch.tensor([1, 0, 0, 0, 0, 0, 0]).bool(), torch.tensor([1, 0, 0, 0, 1, 1, 0]).bool()
    found, null = shares(uniform_call(window), is_bos, is_delimiter)[0].unbind(1)
    torch.testing.assert_close(found, null)
    last = dict(zip(KINDS, found[-1].tolist(), strict=True))
    seen_by_last = 7 if window is None else window
    assert last["delimiters"] == pytest.approx(2 / seen_by_last)
    assert last[WINDOWS_FIRST] == pytest.approx(1 / seen_by_last)
    assert last[FIRST] == last["BOS"] == pytest.approx(0 if window else 1 / 7)


def test_delimiters_hold_neither_letter_nor_digit():
    words = {0: "\n\n", 1: " the", 2: "7", 3: ").", 4: "é", 5: "▁"}
    assert delimiters_of(torch.arange(6), words.__getitem__).tolist() == [True, False, False, True, False, True]


def test_windowed_layers_are_those_that_no_longer_see_the_first_token(tmp_path):
    torch.manual_seed(0)
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    config = Gemma3TextConfig(**SIZES, num_key_value_heads=2, head_dim=12, sliding_window=5, layer_types=kinds)
    Gemma3ForCausalLM(config).save_pretrained(tmp_path)
    module = load_module("windows_and_bos")
    case = open_case(str(tmp_path))
    reading = module._read(case, TOKENS)
    assert reading.kinds() == {module.WINDOWED: [0, 2], module.FULL: [1]}
    windowed, full = reading.rows(11)
    assert windowed["first token"] == 0 == windowed["sees the first token"] and full["sees the first token"] == 1
    pattern = case.subject.run(TOKENS, reads={"pattern": AttentionCall.pattern})["pattern"]
    assert full["first token"] == pytest.approx(pattern[:, 1, :, 8:, 0].mean().item(), abs=1e-6)


def test_bos_stands_first_nowhere_or_later_at_one_length():
    module = load_module("windows_and_bos")
    starts = module.starts_of(TOKENS[:, :11] % 90, 96)
    places = {name: (tokens == 96).nonzero()[:, 1].tolist() for name, tokens in starts.items()}
    assert list(places.values()) == [[0, 0], [], [9, 9]]
    assert {tokens.shape for tokens in starts.values()} == {TOKENS.shape}
    assert list(module.starts_of(TOKENS, None)) == [module.NO_BOS]


def test_the_row_of_an_atlas_is_what_measurements_say(tmp_path):
    model_of("llama").save_pretrained(tmp_path)
    (row,) = load_experiment("atlas_of_models").table(Scope(Scale.SMOKE, models=[str(tmp_path)])).records()
    subject = si.load(str(tmp_path))
    tokens = random_tokens(97, 64, 16).tokens
    few = load_module("atlas_of_models").FEW
    plain, shown, hidden = (
        si.measure(subject, texts, edits=edits, instruments=si.measurement.instruments.LOSS, progress=False)
        for texts, edits in ((tokens, ()), (tokens[:few], ()), (tokens[:few], [RemoveColumn(positions=[0])]))
    )
    losses = [report.extras["loss"][:, 1:].mean() for report in (shown, hidden)]
    assert row["Sink_1 without BOS"] == pytest.approx(plain.sink_rate().mean, abs=1e-6)
    assert row["loss, first token hidden in all layers"] == pytest.approx((losses[1] - losses[0]).item(), abs=1e-5)
    assert row["value ratio"] == pytest.approx(plain.value_ratio().mean().item(), rel=1e-5)
    layer, head = map(int, str(row["strongest heads"]).split(" ")[0].split("."))
    assert plain.alpha().mean(0)[layer, head] == plain.alpha().mean(0).max()


def test_a_chapter_runs_the_models_that_have_what_it_needs():
    assert set(map(str, models_with())) == {str(genuine.model) for genuine in MODELS} and len(MODELS) == 4
    for has in Has:
        assert list(map(str, models_with(has))) == [str(g.model) for g in MODELS if has in g.has] != []
    known = set(map(str, models_with()))
    for name in experiment_names():
        rows = load_experiment(name).rows
        if isinstance(rows, OnModels):
            real = {str(model) for model in rows.models.get(Scale.REAL, ())}
            assert {model for model in real if model.startswith("local/")} <= known, name


def test_models_that_were_not_made_are_left_out_and_named(tmp_path, monkeypatch):
    monkeypatch.setenv("SINKINTERP_CACHE", str(tmp_path))
    rows = OnModels({Scale.REAL: models_with(Has.TEXT)}, lambda case, progress: Table.of("", "read", ({"x": 1},)))
    assert len(rows.chosen(Scope(Scale.REAL))) == 3  # without any, loading says what is missing
    model_of("llama").save_pretrained(tmp_path / "models" / "smollm2-135m-instruct")
    seal(tmp_path / "models" / "smollm2-135m-instruct", {"model": "smollm2-135m-instruct"})
    assert list(map(str, rows.chosen(Scope(Scale.REAL)))) == ["local/smollm2-135m-instruct"]
    note = rows(Scope(Scale.REAL)).note
    assert note == "read; not made here: local/gemma3-270m; not made here: local/qwen2.5-coder-0.5b"


def test_a_large_model_is_measured_on_fewer_sequences_which_begin_as_is_said(tmp_path):
    model_of("llama").save_pretrained(tmp_path)
    assert [open_case(Named(str(tmp_path), **bos)).start for bos in ({}, {"begins": Bos.ALWAYS})] == [
        Bos.NEVER,
        Bos.ALWAYS,
    ]
    case = open_case(Named(str(tmp_path), most=13))
    assert isinstance(case, Case) and case.size() == (13, 64) and case.size(7) == (7, 64)
    assert open_case(str(tmp_path)).size() == (100, 64)


def test_a_verdict_names_the_model_where_a_claim_fails_first():
    rows = tuple({"model": name, "seed": None, "edit": edit, "x": x} for name, edit, x in (
        ("one", "a", 3.0), ("one", "b", 1.0), ("two", "a", 1.0), ("two", "b", 2.0),
    ))  # fmt: skip
    verdict = above("", "x", {"edit": "a"}, {"edit": "b"}).verdict(Table.of("", "", rows))
    assert verdict.outcome is Outcome.FAILS
    assert verdict.reason.startswith("fails: two, 1 ") and "holds: one, 3 " in verdict.reason
    rule = Rule("", lambda table: (table.records()[0]["x"] > 2, f"x is {table.records()[0]['x']:g}"))
    assert of_each(rule).verdict(Table.of("", "", rows)).reason == "fails: two, x is 1; holds: one, x is 3"
