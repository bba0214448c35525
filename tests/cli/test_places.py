"""No output of a command replaces an input, or without --force a file that exists."""

import itertools
import json
import shlex
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from typer.testing import CliRunner

from sinkinterp.cli.main import app
from sinkinterp.cli.options import PACKAGE

INPUTS = ("good/config.json", "good/model.safetensors", "a.txt", "tokens.json", "rows.jsonl", "chats.jsonl")
SMALL = "--length 4 --sequences 2"
COMMANDS = {  # that read INPUTS and write to {out}
    f"measure good --tokens tokens.json {SMALL} --save {{out}}": INPUTS[:2] + INPUTS[3:4],
    f"measure good --tokens tokens.json {SMALL} --json {{out}}": INPUTS[:2] + INPUTS[3:4],
    f"measure good --text rows.jsonl {SMALL} --html {{out}}": INPUTS[:2] + INPUTS[4:5],
    f"domains good rows.jsonl a.txt {SMALL} --json {{out}}": (*INPUTS[:2], INPUTS[2], INPUTS[4]),
    "view good --text a.txt --out {out}": INPUTS[:3],
}
FOLDERS = {  # that write several files to {out}
    "train softmax --text good --set steps=1 --out {out}",
    "finetune good chats.jsonl --out {out}",
    "reproduce table03 --model good --out {out}",
}


@pytest.fixture(scope="module")
def files(files):
    """Inputs, links to them, and files of somebody else."""
    for path in files.iterdir():
        if path.name not in ("good", *INPUTS):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    (files / "rows.jsonl").write_text(json.dumps({"text": "the cat sat the cat sat"}) + "\n" * 9)
    for name in INPUTS:
        flat = name.replace("/", "-")
        (files / f"soft-{flat}").symlink_to(name)
        (files / f"hard-{flat}").hardlink_to(files / name)
    (files / "to-good").symlink_to("good")
    (files / "mine.html").write_text("<!doctype html><p>mine")
    (files / "mine.json").write_text('{"mine": 1}')
    (files / "mine.safetensors").write_bytes((files / "good/model.safetensors").read_bytes())
    (files / "book").mkdir()
    (files / "book/index.html").write_text("<!doctype html><p>mine")
    return files


@pytest.fixture
def refused(files, monkeypatch):
    """Runs a command line that must be refused before it runs, with every file as it was."""
    monkeypatch.chdir(files)
    monkeypatch.setenv("SINKINTERP_CACHE", str(files / "cache"))

    def run(line: str, because: str) -> None:
        before = contents(files)
        result = CliRunner().invoke(app, shlex.split(line))
        assert result.exit_code == 2 and because in result.stderr and result.stderr.count("\n") == 1, (line, result)
        assert contents(files) == before

    return run


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def names_of(name: str) -> list[str]:
    """Ways to name an input: by its path, through links, and by a path that goes back and forth."""
    flat = name.replace("/", "-")
    others = [name.replace("good/", "to-good/")] if "/" in name else []
    return [name, f"./{name}", f"good/../{name}", f"soft-{flat}", f"hard-{flat}", *others]


def because(line: str, out: str, words: str) -> str:
    """Why an output is refused: its suffix contradicts what the option writes, or for the reason that is given."""
    kinds = {"--json": ".json", "--html": ".html", "--out": ".html"}
    kind = next((kind for option, kind in kinds.items() if f"{option} {{out}}" in line), "")
    return words if not kind or Path(out).suffix in ("", kind) else f"give a name that ends in {kind}"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_an_output_that_is_an_input_is_refused_whatever_it_is_called(refused, data):
    line = data.draw(st.sampled_from(sorted(COMMANDS)))
    out = data.draw(st.sampled_from([name for read in COMMANDS[line] for name in names_of(read)]))
    force = data.draw(st.sampled_from(("", " --force")))
    refused(line.format(out=out) + force, because(line, out, "choose another place"))


@pytest.mark.parametrize(
    ("line", "out"), [*itertools.product(sorted(FOLDERS), ("good", "to-good/new", "cache/models/x", "cache/texts"))]
)
def test_an_output_folder_in_an_input_or_among_the_models_and_texts_of_the_cache_is_refused(refused, line, out):
    refused(line.format(out=out), "choose another place")


def test_a_checkpoint_that_ships_is_not_written_over(refused):
    refused(f"measure good {SMALL} --save '{PACKAGE}/checkpoints/demo-softmax/new.safetensors'", "choose another place")


@pytest.mark.parametrize("line", COMMANDS)
@pytest.mark.parametrize("mine", ["mine.html", "mine.json", "mine.safetensors"])
def test_a_file_of_somebody_else_is_not_replaced(refused, line, mine):
    refused(line.format(out=mine), because(line, mine, "exists; choose another place, or add --f"))


def test_a_book_does_not_replace_the_front_page_of_somebody_else(refused):
    refused("reproduce table03 --scale smoke --out book", "book/index.html exists")


@pytest.mark.parametrize("other", ["new.json", "./new.json", "link.json"])
def test_two_outputs_do_not_meet(refused, files, other):
    if not (files / "link.json").is_symlink():
        (files / "link.json").symlink_to("new.json")
    refused(f"measure good --text a.txt {SMALL} --save new.json --json {other}", "two outputs name the same file")


def test_a_file_that_exists_is_replaced_with_force(files, tmp_path, monkeypatch):
    monkeypatch.chdir(files)
    monkeypatch.setenv("SINKINTERP_CACHE", str(tmp_path / "cache"))
    outs = {option: tmp_path / f"out{ending}" for option, ending in WRITTEN.items()}
    options = [word for option, path in outs.items() for word in (option.split()[0], str(path))]
    line = ["measure", "good", "--text", "a.txt", *SMALL.replace("2", "1").split(), "--first-only", *options]
    assert [CliRunner().invoke(app, [*line, *more]).exit_code for more in ((), (), ("--force",))] == [0, 2, 0]
    assert "tables" in json.loads(outs["--json"].read_text())


WRITTEN = {"--save": ".safetensors", "--json": ".json", "--html": ".html"}


def test_a_story_does_not_replace_another_page_of_its_book():
    book = PACKAGE.parent / "figures" / "book"
    page = book / "table03_positions.html"
    before = page.read_bytes()
    result = CliRunner().invoke(app, ["story", str(book), "--out", str(page), "--force"])
    assert result.exit_code == 2 and "another page of the book" in result.stderr and page.read_bytes() == before
