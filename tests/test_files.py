import os
import stat
import threading
from functools import partial
from pathlib import Path

import pytest
import torch
from abuse.test_full_disk import limited
from refusals import refused
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from sinkinterp import files
from sinkinterp.checks import InputError


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_whole_and_missing_folders_are_made(tmp_path):
    file = tmp_path / "a" / "b" / ("x" * 255)  # as long as names can be
    files.write_file(file, "häuser")
    files.write_file(file, "13")
    assert file.read_bytes() == b"13" and names(file.parent) == [file.name]
    files.write_file(file, {"a": [1, None]})
    assert file.read_text() == '{\n "a": [\n  1,\n  null\n ]\n}'


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError, OSError(28, "No space left on device")])
def test_a_failure_leaves_the_old_file_and_no_draft(tmp_path, error):
    file = tmp_path / "kept"
    file.write_text("old")
    expected = InputError if isinstance(error, OSError) else error
    with pytest.raises(expected) as caught, files.replacing(file) as draft:
        draft.write_text("half")
        raise error
    assert file.read_text() == "old" and names(tmp_path) == ["kept"]
    if expected is InputError:
        fix = "free some space or choose another place"
        assert str(caught.value) == f"cannot write {file}: No space left on device; {fix}"


def test_two_writers_of_one_file_do_not_meet(tmp_path):
    file = tmp_path / "shared"
    with files.replacing(file) as first, files.replacing(file) as second:
        first.write_text("first")
        second.write_text("second")
        assert first != second
    assert file.read_text() == "first"  # the block that ends last wins, whole
    assert names(tmp_path) == ["shared"]


def test_a_folder_is_put_in_place_whole_and_never_over_another(tmp_path):
    with files.replacing(tmp_path / "run") as draft:
        (draft / "deep").mkdir(parents=True)
        (draft / "deep" / "a").write_text("1")
    assert (tmp_path / "run" / "deep" / "a").read_text() == "1"
    with pytest.raises(InputError, match="exists"), files.replacing(tmp_path / "run") as draft:
        draft.mkdir()
    assert names(tmp_path) == ["run"]


@pytest.fixture
def odd(tmp_path, monkeypatch):
    """A folder with a file, a folder, a loop and a pipe, in which the test runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("old")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


NO_PLACES = (
    "",
    "..",
    "x" * 300,
    "ä" * 128,
    "folder",
    "file/below",
    "file/a/b",
    "nul\0byte",
    "\ud800",
    "loop",
    "loop/x",
)
NO_PLACES += ("pipe", "/dev/null", "/proc/sinkinterp/page.html", "file")


@pytest.mark.parametrize("name", NO_PLACES)
def test_an_impossible_place_is_one_line_before_and_after_the_work(odd, monkeypatch, name):
    if name == "file":  # as for a user who may not write it, though its folder would allow it
        monkeypatch.setattr("os.access", lambda path, mode: False)
    for attempt in (files.check_writable, lambda path: files.write_file(path, "new")):
        refused(partial(attempt, name))
    assert names(odd) == ["file", "folder", "loop", "pipe"] and (odd / "file").read_text() == "old"
    assert stat.S_ISFIFO((odd / "pipe").stat().st_mode) and stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_asking_whether_a_file_can_be_written_leaves_nothing_behind(tmp_path):
    for name in ("file", "a/b/file"):
        files.check_writable(tmp_path / name)
    assert names(tmp_path) == []


def test_a_link_is_followed_wherever_it_leads(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "made" / "file")
    (tmp_path / "second").symlink_to("link")
    files.write_file(tmp_path / "second", "new")
    assert all((tmp_path / name).is_symlink() for name in ("link", "second"))
    assert (tmp_path / "made" / "file").read_text() == "new" and names(tmp_path / "made") == ["file"]


def test_a_relative_path_is_meant_from_where_the_block_began(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with files.replacing("file") as draft:
        os.chdir("elsewhere")
        draft.write_text("new")
    assert (tmp_path / "file").read_text() == "new" and names(tmp_path / "elsewhere") == []


def test_a_file_keeps_its_permissions(tmp_path):
    file = tmp_path / "file"
    file.write_text("old")
    file.chmod(0o640)
    files.write_file(file, "new")
    assert file.read_text() == "new" and stat.S_IMODE(file.stat().st_mode) == 0o640


def test_a_folder_does_not_replace_a_file_nor_a_file_a_folder(odd):
    for name, write in (("file", Path.mkdir), ("folder", Path.touch)):
        with pytest.raises(InputError, match="cannot write"), files.replacing(odd / name) as draft:
            write(draft)
    assert names(odd) == ["file", "folder", "loop", "pipe"] and (odd / "file").read_text() == "old"


WRITERS = {
    "text": lambda draft: draft.write_text("x" * 1000),
    "safetensors": lambda draft: save_file({"x": torch.zeros(1000)}, draft),
    "tokenizers": lambda draft: Tokenizer(models.WordLevel({str(i): i for i in range(99)}, "0")).save(str(draft)),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_full_disk_is_one_line_whichever_library_meets_it(tmp_path, write):
    file = tmp_path / "file"
    file.write_text("old")
    refused = pytest.raises(InputError, match=rf"^cannot write {file}: [^\n]+; free some space or [a-z ]+$")
    with limited(100), refused, files.replacing(file) as draft:
        write(draft)
    assert file.read_text() == "old" and names(tmp_path) == ["file"]


def test_an_error_that_says_the_fix_already_passes_unchanged(tmp_path):
    with pytest.raises(InputError, match=r"^no BOS; use another \(os error 28\)$"), files.replacing(tmp_path / "run"):
        raise InputError("no BOS; use another (os error 28)")


def test_every_file_is_flushed_before_its_name_appears(tmp_path, monkeypatch):
    flushed, fsync = [], os.fsync

    def note(handle):
        flushed.append((os.fstat(handle).st_ino, (tmp_path / "run").exists()))
        fsync(handle)

    monkeypatch.setattr("os.fsync", note)
    with files.replacing(tmp_path / "run") as draft:
        (draft / "a" / "b").mkdir(parents=True)
        (draft / "a" / "b" / "file").touch()
    assert flushed == [((tmp_path / "run" / "a" / "b" / "file").stat().st_ino, False)]


def test_a_folder_has_one_writer_at_a_time_and_no_drafts_of_killed_ones(tmp_path):
    folder, order = tmp_path / "a" / "run", []

    def second():
        with files.sole_writer(folder):
            order.append(names(folder))

    with files.sole_writer(folder):
        waiting = threading.Thread(target=second)
        waiting.start()
        waiting.join(timeout=0.3)
        assert waiting.is_alive() and order == []
        (folder / ".draft-1-dead").touch()
        (folder / ".draft-2-dead").mkdir()
        (folder / "step-1").mkdir()
    waiting.join(timeout=20)
    assert order == [["lock", "step-1"]]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    refused = pytest.raises(InputError, match=r"^cannot write to [^\n]+: [^\n]+; give another$")
    with refused, files.sole_writer(tmp_path / "file" / "run", "give another"):
        raise AssertionError("the block ran")
