"""Remedies, and what is added to a trained model: their beginnings, tables and pictures, worked by hand."""

import numpy as np
import pytest
import torch
from sinkinterp._experiments.shared.study import BASES

from sinkinterp._experiments import load_module
from sinkinterp.applications.quantising import fake_quantised
from sinkinterp.backends.model_files import load_model
from sinkinterp.data.backcopy import BigramBackcopy
from sinkinterp.data.choices import Scale
from sinkinterp.interventions.attention_layers import Evict
from sinkinterp.lm.variants import VARIANTS
from sinkinterp.measurement.quantities import token_losses
from sinkinterp.runs import trained
from sinkinterp.runs.experiment import Scope
from sinkinterp.table import LOSS, MODEL, SEED, Table
from sinkinterp.train.recipe import Recipe

pytestmark = pytest.mark.usefixtures("module_as_users_run_it")
TOKENS = BigramBackcopy().sample(7, "held out")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained.trained(Recipe(model=VARIANTS["heads_2"], steps=3, batch=5), tmp_path_factory.mktemp("cache"))


@torch.no_grad()
def test_what_is_added_to_a_trained_model_first_leaves_it_as_it_was(run):
    mended, base = load_module("mended_sink"), load_model(run.folder)(TOKENS).logits
    for name in list(mended.ADDITIONS)[:-1]:  # the last begins with a logit of 0
        logits = mended.with_addition(run, name)(TOKENS).logits
        torch.testing.assert_close(logits, base, rtol=0, atol=0.2 if name == "a sink logit" else 1e-5)
    assert (logits - base).abs().max() > 1e-4  # the slot takes a little


def test_what_is_added_is_trained_once_on_later_batches(run, monkeypatch, tmp_path):
    mended, sample, streams = load_module("mended_sink"), BigramBackcopy.sample, []
    monkeypatch.setattr(BigramBackcopy, "sample", lambda self, n, *of: streams.append(of) or sample(self, n, *of))
    for _ in range(2):
        model = mended.trained_on(run, "a gate per element", tmp_path)
    assert model.model.layers[0].self_attn.gate.gate_proj.weight.abs().max() > 0  # as it began
    assert streams == [(0, 4)]  # 3 steps came before


def test_the_last_rate_is_that_at_which_the_training_ended():
    mended, recipe = load_module("mended_sink"), BASES[Scale.TEXT]
    whole, last = (mended.continued(recipe, mended.NOTHING + where) for where in ("", mended.LAST))
    assert whole.steps == last.steps == recipe.steps // 10 and whole.model == last.model == recipe.model
    assert whole.rate(whole.warmup) == recipe.lr and last.rate(last.warmup) == last.rate(last.steps)
    assert last.rate(last.steps) == pytest.approx(recipe.rate(recipe.steps)) == pytest.approx(recipe.lr / 10)


@torch.no_grad()
def test_columns_of_costs_are_those_of_quantised_inputs_and_of_a_cache_of_half_the_text(run):
    remedies = load_module("remedies")
    subject = run.subject()
    row = remedies.outliers_and_costs(subject, TOKENS)
    hidden = subject.model(TOKENS, output_hidden_states=True).hidden_states
    errors = []
    for x in (hidden[0],):  # one block
        rounded = fake_quantised(x, 8, (-2, -1))
        errors.append((rounded - x).square().sum((1, 2)) / x.square().sum((1, 2)))
    assert row["largest entry"] >= hidden[0].abs().max().item()
    assert row[remedies.ERROR] == pytest.approx(torch.stack(errors).mean().item(), rel=0.5)
    evicted = (token_losses(subject, TOKENS, [Evict(8, 0)]) - token_losses(subject, TOKENS))[:, 8:].mean().item()
    assert row[remedies.EVICTED] == pytest.approx(evicted, abs=1e-6)


def table_of(**losses):
    rows = []
    for name, (over, error) in losses.items():
        for seed in (0, 1, 2):
            rest = dict.fromkeys(load_module("remedies").COSTS, 0.5) | {"Sink_1": 0.1, "alpha_1": 0.2, "Sink_*": None}
            rest |= {"residual ratio": 1.0, "kurtosis": 2.0, "largest entry": 3.0, "tokens a second": 1e5}
            rest |= {load_module("remedies").EVICTED: 0.1, load_module("remedies").EVICTED_CONTROL: 0.0}
            rows.append({MODEL: name, SEED: seed, LOSS: 2 + seed + over, **rest, load_module("remedies").ERROR: error})
    return Table.of("", "", tuple(rows))


def test_losses_are_beside_the_baselines_of_the_same_seed_and_the_line_joins_what_nothing_beats():
    remedies = load_module("remedies")
    table = table_of(softmax=(0.0, 1e-3), better=(0.01, 1e-4), worse=(0.02, 1e-2))
    rows = {row[MODEL]: row for row in remedies.digest(table).records()}
    assert rows["better"][remedies.OVER] == pytest.approx(0.01) and rows["worse"][remedies.OVER] == pytest.approx(0.02)
    marks, line, *costs = remedies.draw(table).data
    assert list(marks.text) == ["softmax", "better", "worse"] and list(line.y) == [1e-3, 1e-4]
    assert [list(points.y) for points in costs] == [[0.1] * 9, [0.5] * 9]


def test_what_goes_together_is_judged_by_the_correlation_over_all_models():
    remedies = load_module("remedies")
    (evicted, alpha), (int8, ratio) = remedies.GO_TOGETHER
    draws = torch.Generator().manual_seed(0)
    noise = torch.randn(12, 3, 2, generator=draws)
    causes = torch.randn(12, 1, 2, generator=draws) + 0.3 * noise
    rows = [
        {MODEL: f"m{i}", SEED: j, alpha: a, ratio: b, evicted: 3 * a + 0.2 * n, int8: b - 9 * n}
        for i, (own, others) in enumerate(zip(causes.tolist(), noise.tolist(), strict=True))
        for j, ((a, b), (n, _)) in enumerate(zip(own, others, strict=True))
    ]
    table = Table.of("", "", tuple(rows))
    for x, y in ((alpha, evicted), (ratio, int8), (ratio, evicted)):
        r = remedies.correlation(table, x, y)
        assert r.mean == pytest.approx(np.corrcoef(table.numbers(x), table.numbers(y))[0, 1])
        assert r.low < r.mean < r.high
    of_eviction, of_int8 = (rule.verdict(table) for rule in remedies.RULES[-2:])
    assert (str(of_eviction.outcome), str(of_int8.outcome)) == ("holds", "fails")
    assert f"with {alpha}" in of_eviction.reason and "over 36 models" in of_eviction.reason


def test_every_method_has_its_verdict():
    remedies = load_module("remedies")
    judged = {model for rule in remedies.RULES for model in rule.models}
    assert judged == {arm.name for arm in remedies.arms(Scope(Scale.DEMO))} and len(judged) == 19
