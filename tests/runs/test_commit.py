"""The commit that stands beside the numbers of an experiment."""

import os
import shutil
import subprocess

import pytest

from sinkinterp.runs import experiment as provenance


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Runs git in a repository that holds a copy of the module, which asks for its own commit."""
    if not shutil.which("git"):
        pytest.skip("git is not installed")
    module = tmp_path / "module.py"
    module.write_text("x = 1\n")
    (tmp_path / "book.json").write_text("{}")
    monkeypatch.setattr(provenance, "__file__", str(module))

    def git(*words):
        user = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
        return subprocess.run(["git", *user, *words], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    assert provenance.provenance()["commit"] == "unknown"  # outside a repository
    for words in (["init"], ["add", "."], ["commit", "-m", "first"]):
        git(*words)
    return git


def test_the_commit_is_named_with_whether_files_differ_from_it(repository, tmp_path):
    commit = repository("rev-parse", "HEAD")[:12]
    (tmp_path / "notes.txt").write_text("not a part of the commit")
    (tmp_path / "book.json").write_text("numbers, which are no code")
    assert provenance.provenance()["commit"] == commit
    (tmp_path / "module.py").write_text("x = 2\n")
    assert provenance.provenance()["commit"] == f"{commit}-dirty"


def test_asking_for_the_commit_leaves_the_index_of_the_repository_as_it_is(repository, tmp_path):
    index = tmp_path / ".git" / "index"
    before = index.read_bytes()
    os.utime(tmp_path / "module.py", (0, 0))  # git would note the new time
    provenance.provenance()
    assert index.read_bytes() == before and not index.with_name("index.lock").exists()
