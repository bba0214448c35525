"""Every command that writes: its files come before what it prints, and a disk without room is one line."""

import errno
import io
import json
import os
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import plotly.graph_objects as go
import pytest
from abuse.test_full_disk import limited
from forks import ended, forked, forks
from typer.main import get_command
from typer.testing import CliRunner

from sinkinterp.cli.main import COMMANDS, app
from sinkinterp.cli.options import ENDINGS, checked, output_folder
from sinkinterp.pages.book import Chapter, write_numbers
from sinkinterp.runs.experiment import Experiment
from sinkinterp.table import Table

IDS = "{files}/good --tokens {files}/tokens.json --length 8 --sequences 4"
SHIPPED = "sinkinterp/demo-softmax"
DRAWN = f"measure {SHIPPED} --drawn random --length 11 --sequences 3 --first-only"
WIDE = Table.of("wide", "", ({"model": SHIPPED, "text": "sinks gather on first tokens " * 1_000},))
ALL = {
    "measure --save": f"{DRAWN} --save {{out}}/old --force",
    "measure --json": f"{DRAWN} --json {{out}}/old --force",
    "measure --html": f"{DRAWN} --html {{out}}/old --force",
    "view": "view sinkinterp/text-softmax --text some_words --out {out}/old --force",
    "domains": "domains {files}/good {files}/domains.jsonl --length 4 --sequences 1 --json {out}/old --force",
    "reproduce": "reproduce table07 --scale smoke --out {out} --force",
    "book": "book {out} --force",
    "gallery": "gallery --no-pictures --out {out} --force",
    "demo": "demo --out {out}/old --force",
    "train": "train softmax --set steps=2 --set save_every=1 --device cpu --out {out}/run",
    "finetune": "finetune {files}/good {files}/chats.jsonl --set steps=2 --out {out}/run",
    "cache": f"cache {IDS} --bits 8 --json {{out}}/old --force",
    "mask": f"mask {IDS} --json {{out}}/old --force",
    "mend": "mend sinkinterp/text-softmax --out {out}/run --steps 1 --length 24 --text {files}/mend.txt",
    "patch": "patch {files}/good --clean 'the cat sat' --corrupted 'the sat sat' --out {out}/old --force",
    "explain": "explain sinkinterp/demo-softmax --sequences 4 --length 16 --html {out}/old --force",
    "compare": f"compare {IDS} --edit RemoveColumn --save {{out}}/old --force",
    "story": "story {out} --out {out}/story.html --force",
}
PRINTING = {  # alone
    "list": "list variants",
    "check": "check {files}/good",
    "info": "info {files}/good",
    "generate": "generate sinkinterp/text-softmax --text cats --max-new-tokens 2",
}


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    """Where a command computes for long before it writes, a short computation stands in its place."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SINKINTERP_CACHE", str(tmp_path / "cache"))
    made = Experiment("wide", lambda _: WIDE, lambda _: go.Figure(), (), digest=lambda _: WIDE)
    monkeypatch.setattr("sinkinterp.runs.experiment.load_experiment", lambda _: made)
    monkeypatch.setattr("sinkinterp.pages.gallery.gallery", lambda on_model: Drawn())
    tables = SimpleNamespace(twins=WIDE, residuals=WIDE, swaps=WIDE)
    monkeypatch.setattr("sinkinterp.pages.gallery.demo", lambda *_, **__: tables)
    monkeypatch.setattr("sinkinterp.pages.gallery.demo_page", lambda _: Drawn.html)
    monkeypatch.setattr("sinkinterp.pages.book.passages", lambda chapters: [])
    monkeypatch.setattr("sinkinterp.pages.book.front_page", lambda *parts: "a page")
    monkeypatch.setattr("sinkinterp.pages.book.story_page", lambda chapters: "a page" * 99)


class Drawn:
    html = "a page" * 10_000
    previews: ClassVar = {}


@pytest.fixture(scope="module")
def files(files):
    (files / "domains.jsonl").write_text('{"domain": "cats", "text": "the cat sat the cat sat the cat"}\n' * 3)
    (files / "mend.txt").write_text("\n\n".join(f"{i} cats sat on {i * i} mats" for i in range(300)))
    (files / "tokens.json").write_text(json.dumps([[3, 1, 4, 1, 5, 2, 6, 5]] * 4))
    return files


@pytest.fixture
def folder(tmp_path):
    """A folder with an older file of every name, and the numbers of a chapter."""
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "old").write_text("{}")
    (folder / "gallery.html").write_text("an older gallery")
    write_numbers(folder, Chapter("table07_position_swap", "", Table.of("wide", "", ({"model": SHIPPED},)), (), {}))
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
    hints = {command.__name__: checked(command).__annotations__.values() for command in COMMANDS}
    assert get_command(app).commands.keys() - {"serve"} == {line.split()[0] for line in (ALL | PRINTING).values()}
    writing = {name for name, own in hints.items() if any(_parser(hint) in (*ENDINGS, output_folder) for hint in own)}
    assert writing == {line.split()[0] for line in ALL.values()}


def _parser(hint):
    return next((about.parser for about in getattr(hint, "__metadata__", ()) if hasattr(about, "parser")), None)


@pytest.mark.parametrize("number", [errno.EPIPE, errno.ENOSPC])
@pytest.mark.parametrize("name", ALL)
def test_a_command_whose_prints_go_nowhere_has_written_its_files_before(name, number, files, folder, monkeypatch):
    before = contents(folder)
    stdout = Failing(number, folder)
    code, said = run(shlex.split(ALL[name].format(out=folder, files=files)), stdout, monkeypatch)
    after = contents(folder)
    assert after != before and stdout.written in (after, None), said
    errors = [line for line in said.splitlines() if line.startswith("error")]
    assert (code, len(errors)) == ((0, 0) if number == errno.EPIPE else (2, 1)), said
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
    errors = [line for line in result.stderr.splitlines() if not line.startswith("11 chats")]
    assert len(errors) == 1 and errors[0].startswith("error: cannot write"), result.stderr
    assert before.items() <= contents(folder).items()
    assert not [path for path in folder.rglob("*") if ".draft-" in path.name or path.name.startswith("step-")]


LINE = ["measure", "sinkinterp/demo-softmax", "--drawn", "random", "--length", "11", "--sequences", "3"]


def in_a_fork(line, stdout, stderr):
    """The exit code of a command line in a process of its own, whose streams are files."""

    def work():
        for number, place in ((1, stdout), (2, stderr)):
            os.dup2(os.open(place, os.O_WRONLY | os.O_CREAT), number)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        with pytest.raises(SystemExit) as end:
            app(line)
        sys.stderr.flush()
        os._exit(int(end.value.code or 0))

    return ended(forked(work))


@forks
@pytest.mark.parametrize("is_taken", [True, False])
def test_a_shell_that_takes_no_output_leaves_files_and_one_that_takes_json_gets_nothing_else(is_taken, tmp_path):
    said, numbers = tmp_path / "said.txt", tmp_path / "numbers.json"
    out = "/dev/stdout" if is_taken else str(numbers)
    code = in_a_fork([*LINE, "--json", out], numbers if is_taken else "/dev/full", said)
    assert "tables" in json.loads(numbers.read_text())
    assert code == (0 if is_taken else 2), said.read_text()
    assert said.read_text().count("\n") == (0 if is_taken else 1), said.read_text()
