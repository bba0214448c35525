import itertools
import json
from pathlib import Path

import pytest

from sinkinterp.data import domains
from sinkinterp.data.domains import domains_of
from sinkinterp.errors import InputError

ROWS = [("web", "w1"), ("code", "c1"), ("web", "w2"), ("web", "w3"), ("code", "c2"), ("law", "l1")]


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / ".datasets")


def write(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def read(found) -> list[tuple[str, list[str]]]:
    """Domains in order with their texts, read twice over: texts are not used up."""
    first, second = ([(name, list(texts)) for name, texts in found.items()] for _ in range(2))
    assert first == second
    return first


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "law" / "b.jsonl", [{"text": "l2"}])
    write(tmp_path / "law" / "a" / "z.jsonl", [{"text": "l1"}])
    write(tmp_path / "code.jsonl", [{"text": f"c{i}"} for i in range(1, 6)])
    (tmp_path / "web.txt").write_text("w1\n\nw2")
    (tmp_path / "README.md").write_text("no domain")
    (tmp_path / "empty").mkdir()
    (tmp_path / ".hidden.txt").write_text("no domain")
    return tmp_path


@pytest.fixture
def mixed(tmp_path):
    return write(tmp_path / "mixed.jsonl", [{"domain": name, "text": text, "n": 7} for name, text in ROWS])


def test_the_files_and_subfolders_of_a_folder_are_domains_in_the_order_of_their_names(folder):
    found = [(name, [text.strip() for text in texts]) for name, texts in read(domains_of(folder))]
    assert found == [("code", ["c1", "c2", "c3", "c4", "c5"]), ("law", ["l1", "l2"]), ("web", ["w1", "w2"])]
    assert read(domains_of(str(folder))) == read(domains_of(folder))


def test_several_sources_are_domains_in_the_order_given(folder):
    assert read(domains_of([folder / "law", str(folder / "code.jsonl")], limit=2)) == [
        ("law", ["l1", "l2"]),
        ("code", ["c1", "c2"]),
    ]


def test_rows_of_a_file_are_grouped_by_the_domain_they_name_in_the_order_of_its_first(mixed):
    assert read(domains_of(mixed)) == [("web", ["w1", "w2", "w3"]), ("code", ["c1", "c2"]), ("law", ["l1"])]


def test_any_column_can_hold_the_domain_or_the_text(mixed):
    assert read(domains_of(str(mixed), "domain", field="text", limit=1))[:2] == [("w1", ["web"]), ("c1", ["code"])]
    assert read(domains_of(mixed, field="n")) == [("7", [text for _, text in ROWS])]


def test_no_domain_has_more_texts_than_asked_for(folder, mixed):
    assert [len(texts) for _, texts in read(domains_of(mixed, limit=2))] == [2, 2, 1]
    assert [len(texts) for _, texts in read(domains_of(folder / "code.jsonl", field="text", limit=3))] == [1] * 5
    (folder / "mixed.jsonl").unlink()
    assert [len(texts) for _, texts in read(domains_of(folder, limit=3))] == [3, 2, 2]


def test_datasets_are_named_by_their_names_and_read_only_as_far_as_asked_for(monkeypatch):
    def endless(source, column):
        return (f"{source} {column} {i}" for i in itertools.count())

    monkeypatch.setattr(domains, "texts_of", endless)
    assert read(domains_of(["a/b:en", "imdb"], "body", limit=2)) == [
        ("a/b:en", ["a/b:en body 0", "a/b:en body 1"]),
        ("imdb", ["imdb body 0", "imdb body 1"]),
    ]


def test_nothing_is_read_before_it_is_asked_for(folder):
    (folder / "aaa.jsonl").write_text("no json")
    found = domains_of(folder)
    assert list(found["law"]) == ["l1", "l2"]
    with pytest.raises(InputError, match="cannot read"):
        list(found["aaa"])


@pytest.mark.parametrize(
    ("rows", "fix"),
    [
        ([{"text": "one", "topic": "law"}], "no domain in 'domain', only 'text' .str., 'topic' .str.; name the column"),
        ([{"text": "one", "domain": None}], "no domain in 'domain'"),
        ([{"text": "one", "domain": "a"}, {"text": "two"}], "no domain in 'domain'"),
        ([{"text": "one", "domain": ["a", "b"]}], "no domain in 'domain'"),
        ([{"body": "one", "domain": "a"}], "no string in 'text', only .*--column"),
        ([{}], "holds no row"),
    ],
)
def test_a_file_that_names_no_domains_says_which_columns_it_has(tmp_path, rows, fix):
    with pytest.raises(InputError, match=fix):
        domains_of(write(tmp_path / "a.jsonl", rows))


def test_what_gives_no_domains_names_the_fix(folder):
    with pytest.raises(InputError, match=r"holds no .* file; give a folder with texts"):
        domains_of(folder / "empty")
    with pytest.raises(InputError, match="there is no file"):
        domains_of(folder / "absent")
    with pytest.raises(InputError, match="give at least one"):
        domains_of([])
    with pytest.raises(InputError, match="'imdb' is one domain; give several names"):
        domains_of("imdb")
    (folder / "law.txt").write_text("more law")
    with pytest.raises(InputError, match="two domains are named 'law'; rename"):
        domains_of(folder)
