import os
import signal
from contextlib import nullcontext

import pytest

from sinkinterp.cli import training
from sinkinterp.train import checkpoint, loop
from sinkinterp.train.recipe import Fit, recipe_in

SHORT = ("--set", "steps=7", "--set", "watch_every=3", "--device", "cpu")


@pytest.fixture
def call(call, tmp_path, monkeypatch):
    """Runs the command with an empty cache; returns exit code and output."""
    monkeypatch.setenv("SINKINTERP_CACHE", str(tmp_path / "cache"))
    return call


def test_a_recipe_is_trained_with_its_settings_and_found_again(call, tmp_path):
    code, output = call("train", "k_bias", *SHORT, "--set", "model.n_layers=2", "--seed", 3)
    (run,) = (tmp_path / "cache/runs").iterdir()
    recipe = recipe_in(run / "step-0000007")
    assert code == 0 and recipe.model.n_layers == 2 and recipe.seed == 3 and recipe.key() == run.name
    assert "k_bias step 7/7, loss" in output and "tokens/s" in output and "Sink_1" in output
    assert f"trained: {run}/step-0000007" in output
    assert "step 7/7" not in call("train", "k_bias", *SHORT, "--set", "model.n_layers=2", "--seed", 3)[1]


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_is_exit_code_130_and_a_checkpoint(call, tmp_path, monkeypatch):
    update = loop.update

    def interrupted(job, step, *rest):
        if step == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return update(job, step, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "update", interrupted)
        code, output = call("train", "softmax", *SHORT, "--out", tmp_path / "run")
    assert code == 130 and "the same command goes on from what it saved" in output
    assert checkpoint.latest(tmp_path / "run") == 5
    assert call("train", "softmax", *SHORT, "--out", tmp_path / "run")[0] == 0
    assert checkpoint.latest(tmp_path / "run") == 7


def test_the_speed_is_that_since_the_first_step(monkeypatch):
    clock, notes = iter([1.0, 2.0, 7.0]), []
    monkeypatch.setattr(training, "progress_bars", lambda in_lines: nullcontext(lambda work: show))
    monkeypatch.setattr(training.time, "monotonic", lambda: next(clock))

    def show(done, total, note=""):
        notes.append(note.split("  ")[-1])

    metrics = {"train_loss": 1.0, "grad_norm": 1.0, "tokens": 12}
    with training.run_progress(Fit(steps=3), True, "a model") as (on_step, _):
        for step in (1, 2, 3):
            on_step(step, metrics)
    assert notes == ["0 tokens/s", "12 tokens/s", "4 tokens/s"]
