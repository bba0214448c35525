import hashlib
import json
import textwrap
from pathlib import Path

import pytest

from sinkinterp.data import docstrings
from sinkinterp.data import texts as reading
from sinkinterp.data.sources import Embedded, PythonCode, Source, Texts
from sinkinterp.errors import InputError
from sinkinterp.spec import Spec


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one\n\ntwo\n")
    return path


def test_texts_are_those_of_the_file(file, tmp_path):
    assert [text.strip() for text in Texts(str(file)).texts(tmp_path)] == ["one", "two"]
    with pytest.raises(InputError, match="check the path"):
        list(Texts(str(tmp_path / "nowhere.txt")).texts(tmp_path))


def test_the_fingerprint_follows_the_content_and_not_the_date_or_the_place(file, tmp_path):
    before = Texts(str(file)).fingerprint()
    copy = tmp_path / "b.txt"
    copy.write_bytes(file.read_bytes())
    file.touch()
    assert Texts(str(copy)).fingerprint() == Texts(str(file)).fingerprint() == before
    assert before == hashlib.sha256(hashlib.sha256(b"one\n\ntwo\n").digest()).hexdigest()
    assert not Texts(str(file)).changed_since(before)
    file.write_text("one\n\ntoo\n")
    assert Texts(str(file)).changed_since(before)
    file.unlink()
    assert Texts(str(file)).fingerprint() == "" and not Texts(str(file)).changed_since(before)


def test_a_folder_changes_with_any_of_its_files(file, tmp_path):
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "b.txt").write_text("three")
    before = Texts(str(tmp_path)).fingerprint()
    (tmp_path / "deeper" / "b.txt").write_text("four")
    assert Texts(str(tmp_path)).changed_since(before)


def test_a_column_is_read_by_its_name_and_a_folder_file_by_file(tmp_path):
    for name in ("b", "a"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"text": "no", "body": f"yes {name}"}))
    assert list(Texts(str(tmp_path), column="body").texts(tmp_path)) == ["yes a", "yes b"]


def test_a_dataset_on_the_hub_is_asked_for_its_split_and_has_no_fingerprint(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(reading, "_dataset_rows", lambda *call: asked.append(call) or [{"text": "one"}])
    assert list(Texts("someone/something", split="test").texts(tmp_path)) == ["one"]
    assert asked == [("someone/something", "test")] and Texts("someone/something").fingerprint() == ""


def test_the_embedded_text_is_gathered_into_the_cache_and_told_of(monkeypatch, tmp_path):
    source, told = tmp_path / "a.py", []
    source.write_text(f'"""{"word " * docstrings.MIN_CHARACTERS}"""')
    monkeypatch.setattr(docstrings, "_documented_files", lambda: [source])
    texts = Embedded().texts(tmp_path / "cache", lambda done, of: told.append((done, of)))
    assert texts == [("word " * docstrings.MIN_CHARACTERS).strip()] and told == [(1, 1)]


def test_embedded_text_of_other_versions_has_another_fingerprint_and_stays_good_once_packed(monkeypatch):
    before = Embedded().fingerprint()
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.0")
    assert Embedded().fingerprint() != before and not Embedded().changed_since(before)


@pytest.mark.parametrize("source", [Embedded(), Texts("a.txt")])
def test_a_source_survives_json(source):
    assert Source.from_dict(source.to_dict()) == source == Spec.from_dict(source.to_dict())


def test_python_code_is_files_of_the_standard_library_in_an_order_that_never_changes(tmp_path):
    told = []
    texts = PythonCode().texts(tmp_path, lambda done, of: told.append((done, of)))
    files = [Path(textwrap.__file__), Path(json.decoder.__file__)]
    assert len(texts) > 300 and all(file.read_text() in texts for file in files)
    assert told[-1][0] == told[-1][1] >= len(texts) and texts == PythonCode().texts(tmp_path)


def test_python_code_keeps_to_what_was_packed(monkeypatch):
    before = PythonCode().fingerprint()
    monkeypatch.setattr("platform.python_version", lambda: "9.9.9")
    assert PythonCode().fingerprint() == "9.9.9" != before and not PythonCode().changed_since(before)
