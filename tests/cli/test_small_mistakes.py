"""Hostile names are printed harmlessly, nonsense is refused in one line, and fixes work from here."""

import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from refusals import refused
from typer.main import get_command
from typer.testing import CliRunner

import sinkinterp as si
from sinkinterp.backends.files import named_models
from sinkinterp.cli import options, terminal
from sinkinterp.cli.main import app
from sinkinterp.cli.options import PACKAGE
from sinkinterp.guesses import words_of
from sinkinterp.table import Table

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1) | st.sampled_from(
    ["\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "[/bold]", "[red]", "a\rb", "\x9b2J", "\u202eabc"]
)


@given(NAMES, NAMES, NAMES)
def test_no_control_character_of_a_name_or_a_text_reaches_the_terminal(title, name, cell):
    with terminal.console.capture() as captured:
        terminal.print_table(Table(title, name, ({name: cell},)))
        terminal.print_text(title)
        terminal.console.print(title, markup=False)
    assert all(c.isprintable() or c == "\n" for c in captured.get())


def test_every_package_that_a_message_says_to_install_is_one_of_our_extras():
    extras = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {re.split("[>=]", need)[0] for needs in extras.values() for need in needs} | {"{extra}"}
    sources = [*PACKAGE.rglob("*.py"), *(PACKAGE.parent / "experiments").rglob("*.py")]
    said = {word for file in sources for word in re.findall(r"pip install ([^\s,\"]+)", file.read_text())}
    assert said and said <= names


def test_a_folder_of_the_cache_that_cannot_be_read_holds_no_models_and_no_outputs(tmp_path, monkeypatch):
    monkeypatch.setenv("SINKINTERP_CACHE", str(tmp_path))

    def refused(*args):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "models").mkdir()
    (tmp_path / "out.json").write_text("{}")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "glob", refused)
        patch.setattr(Path, "iterdir", refused)
        assert named_models.downloaded() == {}
        options.check_places([], [tmp_path / "out.json"], [])


def test_weights_that_may_not_be_read_are_called_that(files, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: not str(path).endswith(".safetensors"))
    refused(lambda: si.load(str(files / "good")))


def test_cells_of_numpy_and_torch_are_json_numbers():
    row = {"a": np.float32(1.5), "b": torch.tensor(2), "c": np.float64("nan"), "d": np.int64(3), "e": "x", "f": None}
    plain = json.loads(json.dumps(Table("", "", (row,)).to_dict()))["rows"][0]
    assert plain == {"a": 1.5, "b": 2, "c": None, "d": 3, "e": "x", "f": None}


COMMANDS = get_command(app).commands


@pytest.mark.parametrize("command", COMMANDS)
def test_the_fix_of_an_option_that_a_command_lacks_is_an_option_of_that_command(command):
    options = {name for param in COMMANDS[command].params for name in param.opts} | {"--help"}
    written = [word for word in words_of("instead") if word.startswith("--") and word not in options]
    assert len(written) > 9
    for word in written:
        result = CliRunner().invoke(app, [command, word, "x"])
        others = re.findall(r"`sinkinterp (\w+) ([^`]*)`", " ".join(result.output.split()))  # they have these options
        for other, line in others:
            assert {*re.findall(r"--[a-z][\w-]*", line)} <= {name for p in COMMANDS[other].params for name in p.opts}
        own = " ".join(re.sub("`[^`]*`", "", " ".join(result.output.split())).split())
        said = {*re.findall(r"--[a-z][\w-]*", own)} - {word}
        assert result.exit_code == 2 and said <= options, result.output
