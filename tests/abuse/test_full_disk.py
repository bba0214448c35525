"""A disk that fills up while a run or its data are written: one line, and no draft is left."""

from contextlib import contextmanager

import pytest
from corpora import packed
from refusals import refused

from sinkinterp.checks import InputError
from sinkinterp.data import sources as docstrings
from sinkinterp.lm.variants import VARIANTS
from sinkinterp.train import loop
from sinkinterp.train.loop import job_of
from sinkinterp.train.recipe import Recipe

SPACE = 20_000  # bytes; everything that is written here needs more
BIG = "sinks gather on first tokens " * 1_000
RECIPE = Recipe(model=VARIANTS["softmax"], steps=2, batch=3, save_every=1)


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
def texts(tmp_path, monkeypatch):
    """A file of texts, and a file of Python code whose docstrings are those of the libraries."""
    (tmp_path / "texts.txt").write_text("\n\n".join(f"{i} {BIG[:200]}" for i in range(299)))
    (tmp_path / "code.py").write_text("".join(f'def f{i}():\n    """{i} {BIG[:990]}"""\n' for i in range(50)))
    monkeypatch.setattr(docstrings, "_documented_files", lambda: [tmp_path / "code.py"])


def train(folder):
    loop.train(job_of(RECIPE, RECIPE.data, lambda model: {}), folder / "run")


WRITERS = {
    "corpus": lambda folder: packed(folder / "texts.txt").prepare(folder),
    "docstrings": docstrings.embedded_texts,
    "run": train,
}


@pytest.mark.usefixtures("texts")
@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_file_that_may_not_grow_is_one_line_and_nothing_is_half_written(tmp_path, write):
    with limited(), pytest.raises(InputError, match=rf"^cannot write {tmp_path}[^\n]+: [^\n]+; [^\n]+$"):
        write(tmp_path)
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
