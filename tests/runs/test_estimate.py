"""What a run is said to cost, against steps that are run."""

from dataclasses import replace

import pytest
import torch
from refusals import refused

from sinkinterp.data.backcopy import BigramBackcopy
from sinkinterp.lm.block import GatedFFN
from sinkinterp.lm.model import LMSpec
from sinkinterp.lm.variants import variants
from sinkinterp.runs import estimate
from sinkinterp.runs.estimate import Held, Step, cost_of, step_of
from sinkinterp.train import loop
from sinkinterp.train.recipe import RECIPES, Recipe

ASKED = ("softmax", "sink_logit", "k_bias", "sigmoid", "sigmoid_norm", "alibi", "t5", "gated")
GPU_OR_NOT = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


def recipe_of(name, length, **change):
    base = LMSpec(vocab=101, n_ctx=length, n_layers=2, d_model=48, n_heads=2, ffn=GatedFFN(width=29))
    return Recipe(model=variants(base)[name], data=BigramBackcopy(vocab=101, length=length), **change)


def whole_step(recipe):
    """Bytes of a step at the recipe's own batch."""
    job = estimate._job(recipe)
    model = job.start().train()
    return estimate._run(job, model, torch.optim.AdamW(model.parameters()), repeats=0).memory


@pytest.mark.parametrize("name", ASKED)
def test_a_step_of_a_few_sequences_tells_the_memory_of_a_step_of_all(name):
    recipe = recipe_of(name, length=127, batch=31, micro_batch=23)
    assert step_of(recipe).memory == pytest.approx(whole_step(recipe), rel=0.2)


def test_held_counts_each_tensor_once_and_forgets_those_that_are_gone():
    outside = torch.zeros(11)
    with Held() as held:
        kept = torch.ones(5, 7)
        kept.T.add_(1), outside.add_(1)
        product = kept @ kept.T
        del product
        assert held.now == 4 * 35
    assert held.peak == 4 * (35 + 25)


def test_time_and_memory_lie_on_the_line_through_both_steps():
    recipe = recipe_of("softmax", 13, batch=23, micro_batch=7)
    step = estimate._scaled(3, Step(0.5, 100), Step(0.7, 140), recipe)
    assert step.seconds == pytest.approx(0.7 + 20 * 0.1) and step.memory == 140 + 4 * 20


@GPU_OR_NOT
def test_without_a_gpu_a_step_takes_its_operations_and_the_memory_of_its_weights():
    """6 operations a weight of a matrix and 12 T d a layer; weights, gradients and two moments of 4 bytes each."""
    step = step_of(RECIPES["paper-60m"])
    weights, attention = 6 * (136_462_080 - 50_432 * 768), 12 * 10 * 2048 * 768
    assert step.seconds == pytest.approx(2**20 * (weights + attention) / 150e12, rel=1e-3)
    assert step.memory == pytest.approx(16 * 136_462_080, rel=1e-3)


def test_what_does_not_fit_is_refused_with_the_micro_batch_that_does(monkeypatch, tmp_path):
    monkeypatch.setattr(estimate, "_probed", lambda recipe: (2, Step(1, 300), Step(2, 400)))
    monkeypatch.setattr(estimate, "memory_bytes", lambda: 1000)
    recipe = recipe_of("softmax", 13, batch=23, micro_batch=9)
    refused(lambda: cost_of([recipe], tmp_path))
    assert cost_of([replace(recipe, micro_batch=8)], tmp_path).memory == 1000 / 1e9
    monkeypatch.setattr(estimate, "memory_bytes", lambda: 299)
    refused(lambda: cost_of([recipe], tmp_path))


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
