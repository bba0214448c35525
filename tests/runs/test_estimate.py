"""What a run is said to cost, against steps that are run."""

from dataclasses import replace

import pytest
import torch
from memory import Held

from sinkinterp.data.backcopy import BigramBackcopy
from sinkinterp.lm.block import GatedFFN
from sinkinterp.lm.model import LMSpec
from sinkinterp.lm.variants import variants
from sinkinterp.runs import estimate
from sinkinterp.runs.estimate import seconds_of
from sinkinterp.train import loop
from sinkinterp.train.recipe import RECIPES, Recipe

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
