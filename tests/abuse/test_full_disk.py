"""A disk that fills up while something is written: one line, the old file stays, no draft is left."""

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import plotly.graph_objects as go
import pytest
import torch
from corpora import packed
from refusals import refused
from sinkinterp._experiments.book.chapter import Chapter
from sinkinterp._experiments.book.story import write_chapter

import sinkinterp as si
from sinkinterp.checks import InputError
from sinkinterp.data import sources as docstrings
from sinkinterp.data.tokens import TokenSet
from sinkinterp.lm.variants import VARIANTS
from sinkinterp.table import Table
from sinkinterp.train import loop
from sinkinterp.train.loop import job_of
from sinkinterp.train.recipe import Recipe

SPACE = 20_000  # bytes; everything that is written here needs more
BIG = "sinks gather on first tokens " * 1_000
TABLE = Table.of("big", "", ({"text": BIG},))
RECIPE = Recipe(model=VARIANTS["softmax"], steps=2, batch=3, save_every=1)


@pytest.fixture(scope="module")
def report():
    tokens = torch.arange(16).repeat(97, 1)
    return si.measure(si.load("sinkinterp/demo-softmax"), TokenSet.of(tokens, "some"))


@contextmanager
def limited(space=SPACE):
    """No file may grow beyond so many bytes, as under a quota."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (space, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def texts(tmp_path):
    """A file of texts, and a file of Python code with docstrings."""
    (tmp_path / "texts.txt").write_text("\n\n".join(f"{i} {BIG[:200]}" for i in range(299)))
    (tmp_path / "code.py").write_text("".join(f'def f{i}():\n    """{i} {BIG[:990]}"""\n' for i in range(50)))
    return tmp_path


def train(folder):
    loop.train(job_of(RECIPE, RECIPE.data, lambda model: {}), folder / "run")


WRITERS = {
    "report": lambda folder, report, _: report.save(folder / "old"),
    "chapter": lambda folder, *_: write_chapter(folder, Chapter("old", "", TABLE, (), {}), TABLE, go.Figure()),
    "corpus": lambda folder, _, texts: packed(texts / "texts.txt").prepare(folder),
    "docstrings": lambda folder, *_: docstrings.embedded_texts(folder),
    "run": lambda folder, *_: train(folder),
}


@pytest.fixture
def documented(texts, monkeypatch):
    monkeypatch.setattr(docstrings, "_documented_files", lambda: [texts / "code.py"])


@pytest.mark.usefixtures("documented")
@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_file_that_may_not_grow_is_one_line_and_nothing_is_half_written(tmp_path, report, texts, write):
    olds = [tmp_path / f"old{suffix}" for suffix in ("", ".csv", ".json", ".html")]
    for old in olds:
        old.write_text("{}")
    with limited(), pytest.raises(InputError, match=rf"^cannot write {tmp_path}[^\n]+: [^\n]+; [^\n]+$"):
        write(tmp_path, report, texts)
    assert all(old.read_text() == "{}" for old in olds)
    assert not list(tmp_path.rglob(".draft-*")) and not list(tmp_path.rglob("step-*"))


def test_a_run_on_a_disk_that_was_full_goes_on_when_there_is_room(tmp_path):
    with pytest.raises(InputError, match=r"step 0$"), limited():
        train(tmp_path)
    train(tmp_path)
    assert sorted(path.name for path in (tmp_path / "run").glob("step-*")) == ["step-0000001", "step-0000002"]


def test_an_unwritable_place_is_noticed_before_the_data_are_prepared(tmp_path, monkeypatch):
    from sinkinterp.runs import trained

    (tmp_path / "file").write_text("")
    monkeypatch.setattr(trained, "prepared", lambda *_: pytest.fail("the data were prepared"))
    refused(lambda: trained.trained(RECIPE, tmp_path, folder=tmp_path / "file" / "run"))


def test_a_limit_on_the_size_of_files_does_not_kill_the_program(tmp_path):
    code = (
        "import resource, sys; from pathlib import Path; from sinkinterp.files import write_file; "
        "from sinkinterp.checks import InputError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\n"
        "try: write_file(Path(sys.argv[1]), 'x' * 100)\n"
        "except InputError as error: print(error)"
    )
    pytest.importorskip("resource")
    file = tmp_path / "file"
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"cannot write {file}: File too large; free some space") and not file.exists()
    assert list(Path(tmp_path).iterdir()) == []
