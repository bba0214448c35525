"""Texts by domain, for the experiments that compare kinds of text."""

import itertools
import json
from functools import partial
from unittest.mock import Mock

import pytest
from refusals import refused
from sinkinterp._experiments.shared.domains import domains_of

from sinkinterp.data.texts import texts as texts_of


def write_rows(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


BY_DOMAIN = [("web", "w1"), ("code", "c1"), ("web", "w2"), ("web", "w3"), ("code", "c2"), ("law", "l1")]


def read(found) -> list[tuple[str, list[str]]]:
    """Domains in order with their texts, read twice over: texts are not used up."""
    first, second = ([(name, list(texts)) for name, texts in found.items()] for _ in range(2))
    assert first == second
    return first


@pytest.fixture
def folder(tmp_path):
    write_rows(tmp_path / "law" / "b.jsonl", [{"text": "l2"}])
    write_rows(tmp_path / "law" / "a" / "z.jsonl", [{"text": "l1"}])
    write_rows(tmp_path / "code.jsonl", [{"text": f"c{i}"} for i in range(1, 6)])
    (tmp_path / "web.txt").write_text("w1\n\nw2")
    (tmp_path / "README.md").write_text("no domain")
    (tmp_path / "empty").mkdir()
    (tmp_path / ".hidden.txt").write_text("no domain")
    return tmp_path


@pytest.fixture
def mixed(tmp_path):
    return write_rows(tmp_path / "mixed.jsonl", [{"domain": name, "text": text, "n": 7} for name, text in BY_DOMAIN])


def test_the_files_and_subfolders_of_a_folder_are_domains_in_the_order_of_their_names(folder):
    found = [(name, [text.strip() for text in texts]) for name, texts in read(domains_of(folder))]
    assert found == [("code", ["c1", "c2", "c3", "c4", "c5"]), ("law", ["l1", "l2"]), ("web", ["w1", "w2"])]


def test_several_sources_are_domains_in_the_order_given(folder):
    found = read(domains_of([folder / "law", folder / "code.jsonl"], limit=2))
    assert found == [("law", ["l1", "l2"]), ("code", ["c1", "c2"])]


def test_rows_of_a_file_are_grouped_by_the_domain_they_name_in_the_order_of_its_first(mixed):
    assert read(domains_of(mixed)) == [("web", ["w1", "w2", "w3"]), ("code", ["c1", "c2"]), ("law", ["l1"])]


def test_any_column_can_hold_the_domain_or_the_text(mixed):
    assert read(domains_of(mixed, "domain", field="text", limit=1))[:2] == [("w1", ["web"]), ("c1", ["code"])]
    assert read(domains_of(mixed, field="n")) == [("7", [text for _, text in BY_DOMAIN])]


def test_no_domain_has_more_texts_than_asked_for(folder, mixed):
    assert [len(texts) for _, texts in read(domains_of(mixed, limit=2))] == [2, 2, 1]
    assert [len(texts) for _, texts in read(domains_of(folder / "code.jsonl", field="text", limit=3))] == [1] * 5
    (folder / "mixed.jsonl").unlink()
    assert [len(texts) for _, texts in read(domains_of(folder, limit=3))] == [3, 2, 2]


def test_data_sets_are_named_by_their_names_and_read_only_as_far_as_asked_for(monkeypatch):
    streamed = Mock()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("sinkinterp.data.hub.hub_answers", lambda: True)
    monkeypatch.setattr("datasets.load_dataset", streamed)
    streamed.side_effect = lambda name, *_, **__: ({"body": f"{name} {i}"} for i in itertools.count())
    found = domains_of([texts_of(name, "body") for name in ("a/b", "imdb")], limit=2)
    assert read(found) == [("a/b", ["a/b 0", "a/b 1"]), ("imdb", ["imdb 0", "imdb 1"])]


def test_nothing_is_read_before_it_is_asked_for(folder):
    (folder / "aaa.jsonl").write_text("no json")
    found = domains_of(folder)
    assert list(found["law"]) == ["l1", "l2"]
    refused(lambda: list(found["aaa"]))


@pytest.mark.parametrize(
    ("rows", "column"),
    [
        ([{"text": "one", "topic": "law"}], "topic"),
        ([{"text": "one", "domain": None}], "domain"),
        ([{"text": "one", "domain": "a"}, {"text": "two"}], "domain"),
        ([{"text": "one", "domain": ["a", "b"]}], "domain"),
        ([{"body": "one", "domain": "a"}], "'body' (str)"),
        ([{}], ""),
    ],
)
def test_a_file_that_names_no_domains_says_which_columns_it_has(tmp_path, rows, column):
    refused(lambda: domains_of(write_rows(tmp_path / "a.jsonl", rows)), column)


def test_a_source_without_domains_is_refused(folder):
    (folder / "law.txt").write_text("more law")
    for source in (folder / "empty", folder / "absent", [], folder):
        refused(partial(domains_of, source))
