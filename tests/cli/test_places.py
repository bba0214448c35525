"""No output of a command replaces an input, or without --force a file that exists."""

import json
from pathlib import Path

import pytest

from sinkinterp.backends import load

MODEL = "sinkinterp/demo-softmax"


@pytest.fixture
def refused(call, monkeypatch):
    """Runs a line that is refused before anything is loaded, and leaves every file as it was."""

    def run(line, because):
        monkeypatch.setattr(load, "load_model", lambda *_, **__: pytest.fail("a model is loaded first"))
        for name in ("old.json", "old.csv", "old.html", "ids.json"):
            Path(name).write_text("[[1, 2, 3]]")
        code, output = call(*line.split())
        assert code == 2 and because in output, output
        assert all(file.read_text() == "[[1, 2, 3]]" for file in Path().glob("*.*"))

    return run


@pytest.mark.parametrize(
    "line",
    [
        f"measure {MODEL} --save old.csv", f"measure {MODEL} --out old.html",
        f"compare {MODEL} {MODEL.replace('softmax', 'sigmoid')} --save old.csv", f"view {MODEL} --out old.html",
        f"explain {MODEL} --save old.json", f"patch {MODEL} --clean a --corrupted b --out old.html",
        f"cache {MODEL} --save old.json", f"mask {MODEL} --out old.html", "demo --out old.html",
        "reproduce table07 --save old.csv",
    ],
)  # fmt: skip
def test_a_file_that_exists_is_not_replaced_without_force(refused, line):
    refused(line, "--force")


@pytest.mark.parametrize("out", ["ids.json", "./ids.json", "link.json"])
def test_an_input_is_not_replaced_at_all(refused, out):
    Path("ids.json").touch()
    Path("link.json").symlink_to("ids.json")
    refused(f"cache {MODEL} --tokens ids.json --save {out} --force", "this command reads")


def test_with_force_a_file_is_replaced(call):
    line = ("measure", MODEL, "--drawn", "random", "--length", 7, "--sequences", 2, "--first-only", "--save", "a.json")
    assert [call(*line, *more)[0] for more in ((), (), ("--force",))] == [0, 2, 0]
    assert json.loads(Path("a.json").read_text())["positions"] == [0]


def test_the_pages_of_an_experiment_are_not_replaced_without_force(call):
    line = ("reproduce", "propositions", "--scale", "smoke", "--seeds", 1, "--out", "book")
    codes = [call(*line, *more)[0] for more in ((), (), ("--force",))]
    assert codes == [0, 2, 0] and Path("book/index.html").is_file()
