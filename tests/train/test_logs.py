import sys
from types import ModuleType

import pytest

from sinkinterp.errors import InputError
from sinkinterp.train.logs import open_log
from sinkinterp.train.recipe import Recipe


class Run:
    """A run of either library, which notes what it is told."""

    def __init__(self, rows):
        self.rows = rows
        self.log = lambda numbers, step: rows.append((step, numbers))
        self.add_scalar = lambda tag, value, step: rows.append((step, {tag: value}))
        self.add_text = lambda tag, text: None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.rows.append("closed")


@pytest.fixture
def fakes(monkeypatch):
    """The libraries, replaced by a list of what they are told."""
    rows, settings = [], []
    wandb, board = ModuleType("wandb"), ModuleType("torch.utils.tensorboard")
    wandb.init = lambda **given: settings.append(given) or Run(rows)
    board.SummaryWriter = lambda folder: settings.append(folder) or Run(rows)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "tensorboard", ModuleType("tensorboard"))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    return rows, settings


@pytest.mark.parametrize("name", ["wandb", "tensorboard"])
def test_every_number_reaches_the_log_with_its_step(name, fakes, tmp_path):
    with open_log(name, tmp_path, Recipe()) as write:
        write(7, {"train_loss": 2.5})
    assert fakes[0] == [(7, {"train_loss": 2.5}), "closed"] and len(fakes[1]) == 1


def test_a_resumed_run_goes_on_in_the_same_wandb_run(fakes, tmp_path):
    for _ in range(2):
        with open_log("wandb", tmp_path, Recipe()):
            pass
    first, second = fakes[1]
    assert first == second and first["id"] == Recipe().key() and first["resume"] == "allow"


def test_a_log_that_does_not_start_is_one_line_and_leaves_nothing(fakes, tmp_path, monkeypatch):
    def refuse(**given):
        raise RuntimeError("No API key configured.\nUse `wandb login`")

    monkeypatch.setattr(sys.modules["wandb"], "init", refuse)
    with pytest.raises(InputError, match=r"^wandb does not start: No API key[^\n]+WANDB_MODE"):
        open_log("wandb", tmp_path / "run", Recipe()).__enter__()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["wandb", "tensorboard"])
def test_a_missing_library_is_one_line_that_installs_it(name, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=rf"{name} is not installed; pip install {name}"):
        open_log(name, tmp_path, Recipe()).__enter__()


def test_no_log_is_no_library_and_no_file(tmp_path):
    with open_log(None, tmp_path, Recipe()) as write:
        write(1, {})
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match="choose from wandb, tensorboard"):
        open_log("mlflow", tmp_path, Recipe())


@pytest.mark.parametrize("name", ["wandb", "tensorboard"])
def test_a_folder_that_cannot_be_written_to_is_one_line(tmp_path, fakes, name):
    (tmp_path / "file").touch()
    with (
        pytest.raises(InputError, match=r"^cannot write [^\n]+; choose another place$"),
        open_log(name, tmp_path / "file" / "run", Recipe()),
    ):
        raise AssertionError("the block ran")
