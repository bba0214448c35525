import os
import stat
import threading

import pytest

from sinkinterp.errors import InputError
from sinkinterp.files import check_writable, remove_drafts, replacing, write_bytes, write_json, write_text


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_whole_and_missing_folders_are_made(tmp_path):
    file = tmp_path / "a" / "b" / "page.html"
    write_text(file, "häuser")
    write_bytes(file, b"13")
    assert file.read_bytes() == b"13" and names(file.parent) == ["page.html"]
    write_json(file, {"a": [1, None]})
    assert file.read_text() == '{"a": [1, null]}'


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError, OSError(28, "No space left on device")])
def test_a_failure_leaves_the_old_file_and_no_draft(tmp_path, error):
    file = tmp_path / "kept"
    file.write_text("old")
    expected = InputError if isinstance(error, OSError) else error
    with pytest.raises(expected) as caught, replacing(file) as draft:
        draft.write_text("half")
        raise error
    assert file.read_text() == "old" and names(tmp_path) == ["kept"]
    if expected is InputError:
        fix = "free some space or choose another place"
        assert str(caught.value) == f"cannot write {file}: No space left on device; {fix}"


def test_two_writers_of_one_file_do_not_meet(tmp_path):
    file = tmp_path / "shared"
    with replacing(file) as first, replacing(file) as second:
        first.write_text("first")
        second.write_text("second")
        assert first != second
    assert file.read_text() == "first"  # the block that ends last wins, whole
    assert names(tmp_path) == ["shared"]


def test_a_folder_is_put_in_place_whole_and_never_over_another(tmp_path):
    with replacing(tmp_path / "run") as draft:
        (draft / "deep").mkdir(parents=True)
        (draft / "deep" / "a").write_text("1")
    assert (tmp_path / "run" / "deep" / "a").read_text() == "1"
    with pytest.raises(InputError, match="the folder exists already"), replacing(tmp_path / "run") as draft:
        draft.mkdir()
    assert names(tmp_path) == ["run"]


@pytest.mark.parametrize("name", ["", "x" * 300, "folder", "file/below", "nul\0byte"])
def test_an_impossible_place_is_one_line_before_and_after_the_work(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("old")
    for attempt in (check_writable, lambda path: write_text(path, "new")):
        with pytest.raises(InputError, match=r"^cannot write [^\n]+; [a-z ]+$"):
            attempt(name)
    assert names(tmp_path) == ["file", "folder"] and (tmp_path / "file").read_text() == "old"


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path):
    pipe, heard = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: heard.append(pipe.read_text()))
    reader.start()
    check_writable(pipe)
    write_text(pipe, "page")
    reader.join(timeout=20)
    assert heard == ["page"] and stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_link_is_followed(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_text() == "new"


def test_drafts_of_killed_programs_are_removed_by_the_one_writer(tmp_path):
    (tmp_path / ".draft-1-dead").mkdir()
    (tmp_path / ".draft-2-dead").touch()
    (tmp_path / "step-1").mkdir()
    remove_drafts(tmp_path)
    assert names(tmp_path) == ["step-1"]
