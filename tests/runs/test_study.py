import json
import sys
from dataclasses import replace

import pytest
import torch
from memory import Held
from refusals import refused
from sinkinterp._experiments.shared.rules import higher
from sinkinterp._experiments.shared.study import (
    BASES,
    NUMBERS,
    Trainings,
    architecture,
    at_equal_loss,
    measured,
    onset,
    setting,
    study,
)

import sinkinterp as si
from sinkinterp import table as c
from sinkinterp._experiments import experiment_names
from sinkinterp.checks import InputError
from sinkinterp.data.backcopy import BigramBackcopy
from sinkinterp.data.choices import Scale
from sinkinterp.data.packing import PackedText
from sinkinterp.data.tokenizers import ByteBPE
from sinkinterp.lm.attention import Rotary
from sinkinterp.lm.block import GatedFFN
from sinkinterp.lm.model import LMSpec
from sinkinterp.lm.variants import variants
from sinkinterp.runs import estimate
from sinkinterp.runs.estimate import cost_of, seconds_of
from sinkinterp.runs.experiment import TRAINED, Outcome, Scope, check_scope, load_experiment
from sinkinterp.runs.trained import trained, valid_loss
from sinkinterp.runs.workers import Here
from sinkinterp.table import NULL, at_this_loss, published
from sinkinterp.train import loop
from sinkinterp.train.loop import held_out_tokens
from sinkinterp.train.recipe import RECIPES, ConstantRate, Everything, Recipe, on_text

TINY = replace(BASES[Scale.SMOKE], steps=2)
STUDY = study(
    claim="softmax has more than sigmoid",
    arms=(
        architecture("softmax", sink=18.18, loss=3.73),
        architecture("sigmoid", sink=0.44),
        setting("too fast", lambda recipe: replace(recipe, lr=1e30, clip=1e30, warmup=0)),
    ),
    rules=(higher("softmax", than="sigmoid"),),
)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Three arms with two seeds, a few steps each; the last arm cannot be trained."""
    return STUDY.table(Scope(Scale.SMOKE, seeds=2, workers=Here(), cache=tmp_path_factory.mktemp("cache")))


def test_a_study_has_a_row_for_every_arm_and_seed(table):
    assert [(row[c.MODEL], row[c.SEED]) for row in table.records()] == [
        (name, seed) for seed in (0, 1) for name in ("softmax", "sigmoid", "too fast")
    ]
    assert table.where(model="softmax").frame[published(c.SINK_1)].tolist() == [0.1818] * 2
    assert table.where(model="sigmoid").frame[published(c.LOSS)].isna().all()
    assert "2 seeds" in table.note and "T=16" in table.note


def test_a_training_that_fails_is_a_state_of_its_row(table):
    failed = table.where(model="too fast").records()
    assert all("at step" in row[c.STATE] and row[c.LOSS] is None for row in failed)
    assert set(table.where(model="softmax").frame[c.STATE].tolist()) == {TRAINED}
    assert STUDY.verdicts(table)[0].outcome is Outcome.UNDECIDED  # two seeds
    assert [row["trained"] for row in STUDY.digest(table).records()] == ["2 of 2", "2 of 2", "0 of 2"]


def test_at_equal_loss_the_default_model_is_read_where_it_first_was_as_good():
    default = [(4.0, 0.1), (3.0, 0.2), (3.2, 0.3), (2.0, 0.4)]
    assert [at_equal_loss([(9.0, 0.0), (last, 0.7)], default) for last in (5.0, 3.1, 3.0, 2.5, 1.0)] == [
        0.1, 0.2, 0.2, 0.4, 0.4,
    ]  # fmt: skip
    assert at_equal_loss([], default) is at_equal_loss(default, []) is None


def test_rows_tell_the_default_model_at_their_loss_seed_by_seed(table):
    column = at_this_loss("softmax")
    for model in ("softmax", "too fast"):
        assert [row[column] for row in table.where(model=model).records()] == [None, None]
    assert all(0 < alpha < 1 for alpha in table.where(model="sigmoid").frame[column].tolist())


def test_the_numbers_of_a_run_are_those_of_its_report(tmp_path):
    (row, curve), run = measured(TINY, 16, tmp_path), trained(TINY, tmp_path)
    assert curve == [(one["valid_loss"], one["alpha_1"]) for one in run.history().records()]
    tokens = held_out_tokens(TINY.data, 16)
    report = si.measure(run.subject(), tokens)
    assert set(row) == {c.STATE, *NUMBERS}
    assert row[c.ALPHA_1] == pytest.approx(report.alpha().mean().item())
    assert row[c.EXCESS] == pytest.approx(row[c.ALPHA_1] - row[NULL], abs=1e-6)
    assert row[c.LOSS] == pytest.approx(valid_loss(run.subject(), tokens).mean)
    alphas = report.importance.mean((0, 1, 2))[:13]  # positions that at least four queries see
    assert row[c.STRONGEST] == int(alphas.argmax()) + 1


@pytest.mark.parametrize(
    ("alphas", "step"),
    [([0.2, 0.2, 0.3, 0.4], 20), ([0.3, 0.2, 0.3, 0.4], 20), ([0.3, 0.3, 0.3, 0.25], None), ([0.3], 0)],
)
def test_the_onset_is_the_first_step_from_which_alpha_stays_above_its_null(alphas, step):
    history = [{"step": 10 * i, "alpha_1": alpha} for i, alpha in enumerate(alphas)]
    assert onset(history, null=0.2) == step


def test_the_cost_counts_runs_once_and_leaves_out_what_is_cached(tmp_path):
    recipes = [TINY, TINY, replace(TINY, seed=1)]
    trained(TINY, tmp_path)
    cost = cost_of(recipes, tmp_path)
    assert (cost.runs, cost.cached, cost.tokens) == (2, 1, TINY.steps * TINY.batch * 16)
    assert 0 < cost.hours < 1
    assert cost_of(recipes[:1], tmp_path).hours == 0


def test_the_paper_scale_is_the_paper_field_by_field():
    """Gu et al. 2025, section 4, with the constant rate and the decay of the released configuration."""
    base = BASES[Scale.PAPER]
    assert (base.model.n_layers, base.model.d_model, base.model.n_heads, base.model.ffn.width) == (10, 768, 8, 1536)
    assert (base.steps, base.batch * base.data.length, base.warmup) == (20_000, 2**20, 100)
    assert (base.lr, base.weight_decay, base.schedule, base.decay) == (4e-4, 0.1, ConstantRate(), Everything())
    assert base.model.position == Rotary() and base.bf16


def test_every_row_at_paper_scale_changes_only_what_it_says():
    """Table 3's rotary row, Table 4's softmax row and so on are the paper's default model."""
    base = BASES[Scale.PAPER]
    defaults = {
        "table02_weight_decay": "decay 0.1", "table03_positions": "rotary", "table04_attention_biases": "softmax",
        "table06_attention_operations": "softmax", "table09_learning_rate": "rate x 1, steps x 1",
        "table10_batch_size": "batch x 1", "table11_feed_forward": "swiglu", "table12_heads": "heads_8",
        "table14_scale": "softmax", "section7_post_norm": "pre_norm", "figure06_windows": "causal",
    }  # fmt: skip
    for name, default in defaults.items():
        arms = {arm.name: arm for arm in load_experiment(name).rows.edition.arms}
        assert arms[default].recipe(base, 0) == base, name
        changed = [arm.recipe(base, 0).key() for arm in arms.values()]
        assert len(set(changed)) == len(changed), f"{name}: two arms are one"
    assert RECIPES["paper-60m"] == base


@pytest.mark.parametrize("name", [name for name in experiment_names() if Scale.TEXT in load_experiment(name).scales])
def test_on_text_no_two_arms_of_a_study_are_one_and_each_has_a_model_that_fits_the_text(name):
    recipes = load_experiment(name).recipes(Scope(Scale.TEXT, seeds=1))
    assert recipes or name == "equation32_scaled_normalisation"  # which trains pairs of models in step, and keeps none
    assert len({recipe.key() for recipe in recipes}) == len(recipes)
    assert all(isinstance(recipe.data, PackedText) for recipe in recipes)


def test_a_dry_run_of_the_paper_counts_runs_and_bytes_without_a_text(monkeypatch):
    """21 billion tokens a run; two checkpoints of 12 bytes a parameter."""
    monkeypatch.setattr(estimate, "seconds_of", lambda recipe: 7.2)
    scope = Scope(Scale.PAPER, seeds=1)
    cost = cost_of(load_experiment("table04_attention_biases").recipes(scope), scope.cache)
    assert cost.runs == 5 and cost.tokens == 5 * 20_000 * 2**20
    assert cost.hours == pytest.approx(5 * 40) and cost.gigabytes == pytest.approx(5 * 3.275, rel=1e-3)
    refused(lambda: load_experiment("table04_attention_biases").table(replace(scope, workers=Here())))


def test_settings_change_the_recipe_that_all_arms_start_from():
    study = load_experiment("table04_attention_biases")
    plain = study.recipes(Scope(Scale.PAPER, seeds=2))
    changed = study.recipes(Scope(Scale.PAPER, seeds=2, settings=("micro_batch=3", "recompute=true", "steps=7")))
    assert changed == [replace(recipe, micro_batch=3, recompute=True, steps=7) for recipe in plain]
    refused(
        lambda: check_scope("table01", load_experiment("table01_inputs"), Scope(Scale.SMOKE, settings=("steps=7",))),
        "settings",
    )


def is_trained_at_paper_scale(name):
    experiment = load_experiment(name)
    return Scale.PAPER in experiment.scales and experiment.measured is None


def shrunken(recipe):
    """A recipe of the paper's at 2 layers and 2 steps; one head of 80 dimensions, since k* learns up to 64 of them."""
    model = replace(recipe.model, vocab=258, n_ctx=24, n_layers=2, d_model=80, n_heads=1, ffn=GatedFFN(width=32))
    data = replace(recipe.data, tokenizer=ByteBPE(258), length=24)
    return replace(recipe, model=model, data=data, steps=2, batch=4, micro_batch=2, warmup=1, watch_every=2)


@pytest.fixture(scope="module")
def paper_path(tmp_path_factory):
    """The scope of a shrunken paper recipe on a file of text, and the recipes that are trained.

    A model that several studies train is trained once. Every number of a model that is not chosen is 0.5.
    """
    folder, rows, chosen = tmp_path_factory.mktemp("paper"), {}, set()
    texts = (f"In the year {i} the harbour had {i * i} ships, {i % 7} towers and a wall of stone." for i in range(3000))
    file = folder / "text.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))

    def measured_once(recipe, more, **options):
        if recipe.key() in chosen and (recipe.key(), more) not in rows:
            rows[recipe.key(), more] = measured(recipe, more=more, **options)
        return rows.get((recipe.key(), more), ({c.STATE: TRAINED} | dict.fromkeys(NUMBERS, 0.5), ()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[study.__module__], "measured", measured_once)
        patch.setattr("sinkinterp.runs.trained.EVALUATION_SEQUENCES", 8)
        patch.setitem(BASES, Scale.PAPER, shrunken(BASES[Scale.PAPER]))
        yield Scope(Scale.PAPER, seeds=1, text=file, workers=Here(), cache=folder), chosen


@pytest.mark.parametrize("name", list(filter(is_trained_at_paper_scale, experiment_names())))
def test_a_shrunken_paper_recipe_goes_from_a_text_to_verdicts(name, paper_path):
    """Its first and last model are trained, for two steps."""
    experiment, (scope, chosen) = load_experiment(name), paper_path
    check_scope(name, experiment, scope)
    recipes = experiment.recipes(scope)
    assert all(recipe.data.source.source == str(scope.text) and recipe.bf16 for recipe in recipes)
    assert all(recipe.model.n_layers == 2 for recipe in recipes)
    chosen |= {recipes[0].key(), recipes[-1].key()}
    table = experiment.table(scope)
    verdicts = experiment.verdicts(table, scope.label)
    assert len(verdicts) == len({verdict.claim for verdict in verdicts}) > 0
    assert len(experiment.draw(table).data) > 0 and len(experiment.digest(table).frame)


@pytest.mark.parametrize("name", [name for name in experiment_names() if hasattr(load_experiment(name).rows, "read")])
def test_what_is_read_of_a_finished_run_on_text_trains_nothing(name, paper_path, monkeypatch):
    """A run says which text it was trained on, and so its recipe has another key than the one that asked for it."""
    experiment, (scope, _) = load_experiment(name), paper_path
    recipe = shrunken(on_text(experiment.recipes(replace(scope, scale=Scale.DEMO, text=None))[-1], scope.text))
    run = trained(recipe, scope.cache)
    assert run.recipe.key() != recipe.key()
    monkeypatch.setattr("sinkinterp.train.loop.train", None)
    rows = experiment.rows.read(run, replace(scope, text=None))
    assert rows and all(row for row in rows)


@pytest.mark.parametrize("name", experiment_names())
def test_every_rule_names_models_that_the_study_has(name):
    experiment = load_experiment(name)
    if not isinstance(experiment.rows, Trainings):
        return
    for scale, rules in {Scale.DEMO: experiment.rules, **experiment.rules_at}.items():
        known = {arm.name for arm in experiment.rows.at(scale).arms}
        for rule in rules:
            assert set(rule.models) <= known, f"{name}: {rule.claim}"


def test_a_study_on_text_trains_arms_of_its_own_and_asks_what_they_can_answer():
    table02 = load_experiment("table02_weight_decay")
    names = [arm.name for arm in table02.rows.at(Scale.TEXT).arms]
    assert names == [f"decay {decay}" for decay in ("0", "0.003", "0.012", "0.03", "0.06", "0.1", "0.5", "1", "5")]
    assert len(table02.recipes(Scope(Scale.TEXT, seeds=2))) == 18 and len(table02.rows.at(Scale.DEMO).arms) == 8
    figure29 = load_experiment("figure29_p_norm")
    asked = {model for rule in figure29.rules_at[Scale.TEXT] for model in rule.models}
    assert asked == {arm.name for arm in figure29.rows.at(Scale.TEXT).arms}
    assert 0 < len(figure29.rules_at[Scale.TEXT]) < len(figure29.rules)
    with pytest.raises(AssertionError, match="lacking"):
        study("a claim", (architecture("softmax"),), (), editions={Scale.TEXT: ("softmax", "lacking")})


def test_the_strongest_head_stands_in_every_row_with_its_null(table):
    for row in table.records():
        if row[c.STATE] == TRAINED:
            assert row[c.ALPHA_HEAD] >= row["alpha_1"] and 0 < row[c.NULL_HEAD] < 1
            assert row[f"{c.ALPHA_HEAD} low"] <= row[c.ALPHA_HEAD] <= row[f"{c.ALPHA_HEAD} high"]


def test_what_prevents_a_run_is_no_failed_training(tmp_path, monkeypatch):
    def on_a_full_disk(*_, **options):
        raise InputError("cannot write: no space left on device; make room")

    monkeypatch.setattr(sys.modules[study.__module__], "trained", on_a_full_disk)
    refused(lambda: measured(TINY, 16, tmp_path), "no space left")


GPU_OR_NOT = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


def recipe_of(name, length, **change):
    base = LMSpec(vocab=101, n_ctx=length, n_layers=2, d_model=48, n_heads=2, ffn=GatedFFN(width=29))
    return Recipe(model=variants(base)[name], data=BigramBackcopy(vocab=101, length=length), **change)


def test_a_step_takes_as_long_as_its_batch_is_large(monkeypatch):
    clock = iter([0.0, 9.0, 10.0, 10.5, 20.0, 20.7, 30.0, 30.6])
    monkeypatch.setattr(estimate, "PROBED_TOKENS", 3 * 13)
    monkeypatch.setattr(estimate.time, "perf_counter", lambda: next(clock))
    assert seconds_of(recipe_of("softmax", 13, batch=23)) == pytest.approx(0.6 * 23 / 3)


@GPU_OR_NOT
def test_without_a_gpu_a_step_takes_its_operations():
    """6 operations a weight of a matrix and 12 T d a layer."""
    weights, attention = 6 * (136_462_080 - 50_432 * 768), 12 * 10 * 2048 * 768
    assert seconds_of(RECIPES["paper-60m"]) == pytest.approx(2**20 * (weights + attention) / 150e12, rel=1e-3)


@pytest.mark.parametrize("name", ["softmax", "sink_logit", "alibi", "t5", "sigmoid", "differential"])
def test_blocks_that_are_computed_again_give_the_same_gradients_in_less_memory(name):
    recipe = recipe_of(name, length=61, batch=5)
    held = []
    for recompute in (False, True):
        job = estimate._job(replace(recipe, recompute=recompute))
        model = loop.started(job).train()
        with Held() as counted:
            loop.accumulate(job, job.batch(1), model)
        held.append((counted.peak, [p.grad for p in model.parameters()]))
    (plain, grads), (less, again) = held
    assert less < plain
    torch.testing.assert_close(again, grads)
    assert replace(recipe, recompute=True).key() != recipe.key()
