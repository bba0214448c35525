"""Every command that writes, on a disk without room: one line, exit code 2, old files as they were, no drafts."""

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import plotly.graph_objects as go
import pytest
from abuse.test_full_disk import limited
from typer.testing import CliRunner

from sinkinterp.cli.main import app
from sinkinterp.pages.book import Chapter, write_numbers
from sinkinterp.runs.experiment import Experiment
from sinkinterp.table import Table

SHIPPED = "sinkinterp/demo-softmax"
DRAWN = f"measure {SHIPPED} --drawn random --length 11 --sequences 3 --first-only"
WIDE = Table("wide", "", ({"model": SHIPPED, "text": "sinks gather on first tokens " * 1_000},))
LINES = {
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
}


@pytest.fixture(scope="module")
def files(files):
    (files / "domains.jsonl").write_text('{"domain": "cats", "text": "the cat sat the cat sat the cat"}\n' * 3)
    return files


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


class Drawn:
    html = "a page" * 10_000
    previews: ClassVar = {}


def check_refused(folder: Path, line: str, files: Path) -> None:
    before = contents(folder)
    result = CliRunner().invoke(app, shlex.split(line.format(out=folder, files=files)))
    assert result.exit_code == 2 and not isinstance(result.exception, OSError), result.output
    errors = [line for line in result.stderr.splitlines() if not line.startswith("11 chats")]
    assert len(errors) == 1 and errors[0].startswith("error: cannot write"), result.stderr
    assert {path: text for path, text in contents(folder).items() if path in before} == before
    assert not [path for path in folder.rglob("*") if ".draft-" in path.name or path.name.startswith("step-")]


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def fill(folder: Path) -> None:
    """An older file of every name, and the numbers of a chapter."""
    (folder / "old").write_text("{}")
    (folder / "gallery.html").write_text("an older gallery")
    made = Chapter("table07_position_swap", "", Table("wide", "", ({"model": SHIPPED},)), (), {})
    write_numbers(folder, made)


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_a_command_whose_files_may_not_grow_says_so_in_one_line(tmp_path, files, line):
    folder = tmp_path / "out"
    folder.mkdir()
    fill(folder)
    with limited(200):
        check_refused(folder, line, files)
