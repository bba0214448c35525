import os
import signal
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from sinkinterp.cli import train, training_progress
from sinkinterp.cli.main import app
from sinkinterp.runs.trained import recipe_of
from sinkinterp.train import checkpoint, loop

SHORT = ("--set", "steps=7", "--set", "watch_every=3", "--device", "cpu")


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Runs the command with an empty cache; returns exit code and output."""
    monkeypatch.setenv("SINKINTERP_CACHE", str(tmp_path / "cache"))

    def run(*words):
        result = CliRunner().invoke(app, [*map(str, words)])
        return result.exit_code, " ".join(result.output.split())

    return run


def test_a_recipe_is_trained_with_its_settings_and_found_again(call, tmp_path):
    code, output = call("train", "k_bias", *SHORT, "--set", "model.n_layers=2", "--seed", 3)
    (run,) = (tmp_path / "cache/runs").iterdir()
    recipe = recipe_of(run / "step-0000007")
    assert code == 0 and recipe.model.n_layers == 2 and recipe.seed == 3 and recipe.key() == run.name
    assert "k_bias step 7/7 loss" in output and "tokens/s" in output and "Sink_1" in output
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
    assert code == 130 and "the same command goes on from there" in output
    assert checkpoint.latest(tmp_path / "run") == 5
    assert call("train", "softmax", *SHORT, "--out", tmp_path / "run")[0] == 0
    assert checkpoint.latest(tmp_path / "run") == 7


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train", "nonsuch"), "there is no variant 'nonsuch'; choose from llama, softmax"),
        (
            ("train", "softmax", "--recipe", "huge"),
            "there is no recipe 'huge'; choose from demo, small, text, paper-60m",
        ),
        (("train", "softmax", "--set", "model.n_layer=4"), "near ones: model.n_layers"),
        (("train", "softmax", "--recipe", "paper-60m"), "a text of your own, in blocks of 2048 tokens"),
        (("train", "softmax", "--device", "tpu"), "there is no device 'tpu'"),
        (("train", "softmax", "--log", "mlflow"), "choose from wandb, tensorboard"),
        (("finetune", "./absent", "chats.jsonl", "--out", "run"), "./absent"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(call, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    code, output = call(*words)
    assert code == 2 and output.startswith("error: ") and message in output
    assert not list(tmp_path.rglob("step-*"))


def test_a_terminal_gets_a_bar(monkeypatch, capsys):

    monkeypatch.setattr(training_progress, "error_console", Console(force_terminal=True, width=150))
    metrics = {"train_loss": 2.5, "sink_1": 0.25, "grad_norm": 0.5, "tokens": 10}
    with training_progress.step_progress("softmax", 7) as on_step:
        on_step(5, metrics)
        on_step(7, metrics)
    shown = capsys.readouterr().out
    assert "loss 2.500" in shown and "Sink_1 25%" in shown and "7/7" in shown and "tokens/s" in shown


def test_lines_come_every_few_seconds_with_speed_and_time_left(monkeypatch, capsys):
    clock = iter([0.0, 1.0, 1.0, 2.0, 2.0, 7.0, 7.0, 7.0, 7.0])
    monkeypatch.setattr(training_progress.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(training_progress, "error_console", Console(width=150))
    on_step = training_progress.step_lines("softmax", 100, training_progress.Speed())
    for step in (1, 2, 3):
        on_step(step, {"train_loss": 2.5, "grad_norm": 0.5, "tokens": 12})
    (line,) = capsys.readouterr().out.splitlines()
    assert "step 3/100" in line and "4 tokens/s" in line  # 24 tokens in the 6 seconds since step 1
    assert "0:04:51 left" in line  # 97 steps at 3 seconds


def test_data_that_take_long_say_how_far_they_are(monkeypatch, capsys):
    clock = iter([0.0, 4.0, 6.0, 6.0, 12.0, 12.0])
    monkeypatch.setattr(training_progress.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(training_progress, "error_console", Console(width=150))
    on_data = training_progress.data_lines()
    for done, of in ((1, 0), (2000, 0), (3000, 4000)):
        on_data(done, of)
    assert capsys.readouterr().out.splitlines() == ["data: 2,000", "data: 3,000 of 4,000"]


def test_the_command_line_has_both_commands():
    assert {"train", "finetune"} <= {c.name or c.callback.__name__ for c in app.registered_commands}
    assert Path(train.__file__).is_file()
