"""Every command that writes: files come before prints, a disk without room is one line, and what exists stays."""

import errno
import io
import json
import os
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import plotly.graph_objects as go
import pytest
from abuse.test_full_disk import limited
from forks import ended, forked, forks
from typer.main import get_command
from typer.testing import CliRunner

from sinkinterp._experiments import load_module
from sinkinterp.backends import load
from sinkinterp.cli.main import app
from sinkinterp.runs.experiment import Experiment
from sinkinterp.table import Table

IDS = "{files}/good --tokens {files}/tokens.json --length 8 --sequences 4"
SHIPPED = "sinkinterp/demo-softmax"
DRAWN = f"measure {SHIPPED} --drawn random --length 11 --sequences 3 --first-only"
WIDE = Table.of("wide", "", [{"model": SHIPPED, "text": "sinks gather on first tokens " * 1_000}])
ALL = {
    "measure --save": f"{DRAWN} --save {{out}}/old.csv --force",
    "measure --out": f"{DRAWN} --out {{out}}/old.html --force",
    "view": "view sinkinterp/text-softmax --prompt some_words --out {out}/old.html --force",
    "reproduce": "reproduce table07 --scale smoke --out {out}/book",
    "demo": "demo --out {out}/old.html --force",
    "train": "train softmax --set steps=2 --set save_every=1 --device cpu --out {out}/run",
    "cache": f"cache {IDS} --bits 8 --save {{out}}/old.json --force",
    "mask": f"mask {IDS} --save {{out}}/old.json --force",
    "mend": "mend sinkinterp/text-softmax --out {out}/run --steps 1 --length 24 --text {files}/mend.txt",
    "patch": "patch {files}/good --clean 'the cat sat' --corrupted 'the sat sat' --out {out}/old.html --force",
    "explain": "explain sinkinterp/demo-softmax --sequences 4 --length 16 --out {out}/old.html --force",
    "compare": f"compare {IDS} --edit RemoveColumn() --save {{out}}/old.json --force",
}
PRINTING = {"list": "list variants", "check": "check {files}/good"}  # alone


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    """Where a command computes for long before it writes, a short computation stands in its place."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SINKINTERP_CACHE", str(tmp_path / "cache"))
    made = Experiment("wide", lambda _: WIDE, lambda _: go.Figure(), (), digest=lambda _: WIDE)
    monkeypatch.setattr("sinkinterp.runs.experiment.load_experiment", lambda _: made)
    tables = SimpleNamespace(twins=WIDE, residuals=WIDE, swaps=WIDE)
    monkeypatch.setattr("sinkinterp.pages.demo.demo", lambda *_, **__: tables)
    monkeypatch.setattr("sinkinterp.pages.demo.demo_page", lambda _: "a page" * 10_000)
    monkeypatch.setattr(load_module("book.story"), "passages", lambda chapters: [])
    monkeypatch.setattr(load_module("book.story"), "front_page", lambda *parts: "a page")


@pytest.fixture(scope="module")
def files(files):
    (files / "mend.txt").write_text("\n\n".join(f"{i} cats sat on {i * i} mats" for i in range(300)))
    (files / "tokens.json").write_text(json.dumps([[3, 1, 4, 1, 5, 2, 6, 5]] * 4))
    return files


@pytest.fixture
def folder(tmp_path):
    """A folder with an older file of every name."""
    folder = tmp_path / "out"
    folder.mkdir()
    for ending in ("html", "json", "csv"):
        (folder / f"old.{ending}").write_text("{}")
    return folder


class Failing(io.StringIO):
    """A stream that takes nothing, and remembers which files were there when it was first written to."""

    def __init__(self, number: int, folder: Path) -> None:
        super().__init__()
        self.number, self.folder, self.written = number, folder, None

    def write(self, text: str) -> int:
        if self.written is None:
            self.written = contents(self.folder)
        raise OSError(self.number, "no room" if self.number == errno.ENOSPC else "closed")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run(line: list[str], stdout, monkeypatch) -> tuple[int, str]:
    """The exit code of a command line that prints to a stream, and what it said on standard error."""
    said = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr(sys, "stderr", said)
    with pytest.raises(SystemExit) as ended:
        app(line)
    return int(ended.value.code or 0), said.getvalue()


def test_every_command_is_tried_here():
    """`serve` prints where it listens."""
    assert get_command(app).commands.keys() - {"serve"} == {line.split()[0] for line in (ALL | PRINTING).values()}


@pytest.mark.parametrize("number", [errno.EPIPE, errno.ENOSPC])
@pytest.mark.parametrize("name", ALL)
def test_a_command_whose_prints_go_nowhere_has_written_its_files_before(name, number, files, folder, monkeypatch):
    before = contents(folder)
    stdout = Failing(number, folder)
    code, said = run(shlex.split(ALL[name].format(out=folder, files=files)), stdout, monkeypatch)
    after = contents(folder)
    assert after != before and stdout.written in (after, None), said
    errors = [line for line in said.splitlines() if line.startswith("error")]
    prints = number == errno.ENOSPC and stdout.written is not None
    assert (code, len(errors)) == ((2, 1) if prints else (0, 0)), said
    assert all("standard output: no room" in line for line in errors)


@pytest.mark.parametrize("number", [errno.EPIPE, errno.ENOSPC])
@pytest.mark.parametrize("line", PRINTING.values(), ids=PRINTING)
def test_a_command_that_only_prints_ends_quietly_or_says_that_it_cannot(number, line, files, tmp_path, monkeypatch):
    code, said = run(line.format(files=files).split(), Failing(number, tmp_path), monkeypatch)
    assert (code, "standard output: no room" in said) == ((0, False) if number == errno.EPIPE else (2, True)), said


@pytest.mark.parametrize("name", ALL)
def test_a_command_whose_files_may_not_grow_says_so_in_one_line_and_leaves_old_files(name, files, folder):
    before = contents(folder)
    with limited(200):
        result = CliRunner().invoke(app, shlex.split(ALL[name].format(out=folder, files=files)))
    assert result.exit_code == 2 and not isinstance(result.exception, OSError), result.output
    errors = [line for line in result.stderr.splitlines() if line.startswith("error")]
    assert len(errors) == 1 and errors[0].startswith("error: cannot write"), result.stderr
    assert before.items() <= contents(folder).items()
    assert not [path for path in folder.rglob("*") if ".draft-" in path.name or path.name.startswith("step-")]


@pytest.mark.parametrize("name", [name for name, line in ALL.items() if line.endswith(" --force")])
def test_a_file_that_exists_is_not_replaced_without_force(name, files, folder, monkeypatch):
    monkeypatch.setattr(load, "load_model", lambda *_, **__: pytest.fail("a model is loaded first"))
    before, line = contents(folder), ALL[name].removesuffix(" --force").format(out=folder, files=files)
    result = CliRunner().invoke(app, shlex.split(line))
    assert result.exit_code == 2 and "--force" in result.output and contents(folder) == before


@pytest.mark.parametrize("out", ["ids.json", "./ids.json", "link.json"])
def test_an_input_is_not_replaced_at_all(out, tmp_path):
    (tmp_path / "ids.json").write_text("[[1, 2, 3]]")
    (tmp_path / "link.json").symlink_to("ids.json")
    result = CliRunner().invoke(app, f"cache {SHIPPED} --tokens ids.json --save {out} --force".split())
    assert result.exit_code == 2 and "this command reads" in result.output
    assert (tmp_path / "ids.json").read_text() == "[[1, 2, 3]]"


def test_the_pages_of_an_experiment_are_not_replaced_without_force():
    line = "reproduce propositions --scale smoke --seeds 1 --out book"
    codes = [CliRunner().invoke(app, [*line.split(), *more]).exit_code for more in ((), (), ("--force",))]
    assert codes == [0, 2, 0] and Path("book/index.html").is_file()


LINE = ["measure", "sinkinterp/demo-softmax", "--drawn", "random", "--length", "11", "--sequences", "3"]


def in_a_fork(line, stdout, error):
    """The exit code of a command line in a process of its own. Its standard output is a file, or closed if None."""

    def work():
        os.dup2(os.open(error, os.O_WRONLY | os.O_CREAT), 2)
        sys.stderr = os.fdopen(2, "w")
        if stdout is None:
            os.close(1)
            sys.stdout = None  # as Python starts then
        else:
            os.dup2(os.open(stdout, os.O_WRONLY | os.O_CREAT), 1)
            sys.stdout = os.fdopen(1, "w")
        with pytest.raises(SystemExit) as end:
            app(line)
        sys.stderr.flush()
        os._exit(int(end.value.code or 0))

    return ended(forked(work))


@forks
@pytest.mark.parametrize("stdout", ["/dev/full", None], ids=["full", "closed"])
def test_a_standard_output_that_takes_nothing_leaves_the_files(stdout, tmp_path):
    error, numbers = tmp_path / "error.txt", tmp_path / "numbers.json"
    code = in_a_fork([*LINE, "--save", str(numbers)], stdout, error)
    assert json.loads(numbers.read_text())["positions"] == list(range(11))
    assert code == (0 if stdout is None else 2) and error.read_text().count("error:") == code // 2, error.read_text()


@forks
def test_json_of_several_tables_is_one_text_and_nothing_else(tmp_path):
    out = tmp_path / "out.json"
    assert in_a_fork([*LINE, "--full", "--format", "json"], out, tmp_path / "error.txt") == 0
    tables = json.loads(out.read_text())
    assert len(tables) > 2 and all(table["rows"] for table in tables)
