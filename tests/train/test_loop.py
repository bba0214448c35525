import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from sinkinterp.errors import InputError
from sinkinterp.lm.model import build
from sinkinterp.lm.variants import VARIANTS
from sinkinterp.train import checkpoint, loop
from sinkinterp.train.recipe import Recipe

RECIPE = Recipe(model=VARIANTS["k_bias"], steps=24, batch=7, warmup=5, watch_every=6, save_every=6)
TRAIN = """
import json, sys
from pathlib import Path
from sinkinterp.train.loop import train
from sinkinterp.train.recipe import Recipe
watch = lambda model: {"head": model.lm_head.weight.sum().item()}
on_step = lambda step, latest: print(step, flush=True)
train(Recipe.from_dict(json.loads(sys.argv[1])), Path(sys.argv[2]), watch, on_step)
"""


def watch(model):
    return {"head": model.lm_head.weight.sum().item()}


def files(folder):
    tensors = load_file(folder / "model.safetensors") | load_file(folder / "optimizer.safetensors")
    return tensors, (folder / "history.json").read_text()


def assert_same(left, right):
    (a, history_a), (b, history_b) = files(left), files(right)
    assert a.keys() == b.keys() and all(a[name].equal(b[name]) for name in a)
    assert history_a == history_b


def test_two_trainings_of_one_recipe_are_bitwise_equal(tmp_path):
    assert_same(*(loop.train(RECIPE, tmp_path / name, watch) for name in "ab"))


def test_another_seed_gives_another_model(tmp_path):
    a, b = (files(loop.train(replace(RECIPE, seed=seed), tmp_path / str(seed), watch))[0] for seed in (0, 1))
    assert not a["lm_head.weight"].equal(b["lm_head.weight"])


def test_a_run_killed_at_random_steps_ends_as_if_it_had_not_been(tmp_path):
    whole = loop.train(RECIPE, tmp_path / "whole", watch)
    command = [sys.executable, "-c", TRAIN, json.dumps(RECIPE.to_dict()), str(tmp_path / "killed")]
    for stop in ("3", "13"):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                if line.strip() == stop:
                    process.send_signal(signal.SIGKILL)
                    break
        assert process.returncode == -signal.SIGKILL
    assert checkpoint.latest(tmp_path / "killed") == 12
    assert_same(loop.train(RECIPE, tmp_path / "killed", watch), whole)


def test_a_kill_between_writing_and_renaming_leaves_the_last_whole_checkpoint(tmp_path, monkeypatch):
    whole = loop.train(RECIPE, tmp_path / "whole", watch)

    def killed(self, target):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("pathlib.Path.rename", killed)
        loop.train(RECIPE, tmp_path / "cut", watch)
    assert checkpoint.latest(tmp_path / "cut") == 0
    assert_same(loop.train(RECIPE, tmp_path / "cut", watch), whole)


def test_a_finished_run_is_not_trained_again(tmp_path):
    done = loop.train(RECIPE, tmp_path, watch)
    before = os.stat(done / "model.safetensors").st_mtime_ns
    steps = []
    assert loop.train(RECIPE, tmp_path, watch, lambda step, latest: steps.append(step)) == done
    assert not steps and os.stat(done / "model.safetensors").st_mtime_ns == before


def test_only_the_newest_two_checkpoints_stay(tmp_path):
    loop.train(RECIPE, tmp_path, watch)
    assert sorted(p.name for p in tmp_path.glob("*") if p.is_dir()) == ["step-0000018", "step-0000024"]


def test_the_history_has_a_reading_at_the_start_and_at_every_interval(tmp_path):
    history = checkpoint.history_of(loop.train(RECIPE, tmp_path, watch))
    assert [row["step"] for row in history] == [0, 6, 12, 18, 24]


def test_a_loss_that_is_not_finite_stops_the_run_and_says_the_step(tmp_path, monkeypatch):
    update = loop._update
    monkeypatch.setattr(
        loop, "_update", lambda recipe, step, *rest: float("nan") if step == 9 else update(recipe, step, *rest)
    )
    with pytest.raises(InputError, match="nan at step 9; lower lr"):
        loop.train(RECIPE, tmp_path, watch)
    assert checkpoint.latest(tmp_path) == 6


@pytest.mark.parametrize("variant", VARIANTS)
def test_parameter_groups_cover_the_model_once(variant):
    model = build(VARIANTS[variant])
    grouped = [p for group in loop._groups(model, 1.0) for p in group["params"]]
    trained = [p for p in model.parameters() if p.requires_grad]
    assert len(grouped) == len(trained) and {id(p) for p in grouped} == {id(p) for p in trained}


def test_gains_positions_and_slots_are_not_decayed():
    model = build(VARIANTS["k_bias"])
    free = {id(p) for p in loop._groups(model, 1.0)[1]["params"]}
    names = {name for name, p in model.named_parameters() if id(p) in free}
    assert names == {
        "model.position.table.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.post_attention_layernorm.weight",
        "model.layers.0.self_attn.slots.key",
        "model.norm.weight",
    }


def test_the_first_update_is_adamw_worked_by_hand():
    recipe = replace(RECIPE, clip=1e9, warmup=1)
    model, oracle = build(recipe.model), build(recipe.model)
    optimizer = torch.optim.AdamW(loop._groups(model, 0.5), betas=(0.9, 0.95))
    loop._update(recipe, 1, model, optimizer)
    tokens = recipe.data.sample(recipe.batch, recipe.seed, 1)
    oracle(tokens, labels=tokens).loss.backward()
    weight, lr = oracle.lm_head.weight, recipe.rate(1)
    want = weight * (1 - lr * 0.5) - lr * weight.grad / (weight.grad.abs() + 1e-8)
    torch.testing.assert_close(model.lm_head.weight, want)


def test_the_rate_warms_up_holds_and_cools_down():
    recipe = Recipe(steps=1000, warmup=100, lr=1.0, cooldown=0.2)
    assert recipe.rate(50) == 0.5 and recipe.rate(100) == recipe.rate(800) == 1.0
    assert recipe.rate(900) == pytest.approx(0.55) and recipe.rate(1000) == pytest.approx(0.1)


def test_a_task_that_does_not_fit_the_model_is_refused():
    with pytest.raises(ValueError, match="same symbols"):
        Recipe(model=replace(VARIANTS["softmax"], vocab=65))


def test_training_leaves_the_number_of_threads_as_it_was(tmp_path):
    before = torch.get_num_threads()
    loop.train(replace(RECIPE, steps=6), tmp_path, watch)
    assert torch.get_num_threads() == before


def test_a_second_process_waits_for_the_first(tmp_path):
    command = [sys.executable, "-c", TRAIN, json.dumps(RECIPE.to_dict()), str(tmp_path)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [process.communicate(timeout=120)[0].split() for process in both]
    assert all(process.returncode == 0 for process in both)
    assert sorted(map(len, printed)) == [0, 24]
