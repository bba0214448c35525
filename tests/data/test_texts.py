import csv
import itertools
import json
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pyarrow
import pyarrow.parquet
import pytest
from datasets.exceptions import DatasetNotFoundError
from refusals import refused

from sinkinterp.data.texts import domains_of, texts as texts_of
from sinkinterp.data.tokens import token_set_of


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / ".datasets")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


TEXTS, BODIES = ["one,\ntwo", "é", ""], ["a", "b", ""]
ROWS = [{"text": text, "body": body, "id": i} for i, (text, body) in enumerate(zip(TEXTS, BODIES, strict=True))]


def write_rows(path: Path, rows: list[dict] = ROWS) -> Path:
    """The rows in the format of the path's ending, written by others than `datasets`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    else:
        path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.parquet", "a.csv", "a.JSONL", "a[1].csv", "a*.jsonl"])
def test_every_format_gives_the_same_texts_from_the_column_asked_for(tmp_path, name):
    write_rows(tmp_path / f"a1{Path(name).suffix}", [{"text": "a neighbour", "body": "c"}])
    path = write_rows(tmp_path / name)
    assert list(texts_of(path)) == TEXTS
    assert list(texts_of(path, "body")) == BODIES


def test_cells_of_a_csv_file_that_look_like_numbers_or_nothing_are_texts_among_texts(tmp_path):
    path = write(tmp_path / "a.csv", 'text,b\n7,x\nNA,y\n,z\n"two\nlines",w\n')
    assert list(texts_of(path)) == ["7", "NA", "", "two\nlines"]


def test_a_folder_gives_the_texts_of_its_files_in_the_order_of_their_paths(tmp_path):
    write_rows(tmp_path / "b.jsonl", [{"body": "3"}])
    write_rows(tmp_path / "a" / "z.parquet", [{"body": "2"}])
    write_rows(tmp_path / "a" / "deeper" / "y.csv", [{"body": "x1"}])
    write(tmp_path / "c.txt", "4")
    write(tmp_path / "README.md", "no text of ours")
    write_rows(tmp_path / ".hidden" / "d.jsonl", [{"body": "5"}])
    write(tmp_path / "._a.txt", "6")
    assert list(texts_of(tmp_path, "body")) == ["x1", "2", "3", "4"]


def test_a_file_is_read_no_further_than_it_is_asked_for(tmp_path):
    path = write(tmp_path / "a.txt", "one\n\ntwo")
    texts = iter(texts_of(tmp_path))
    write_rows(tmp_path / "b.jsonl", [{"body": "a mistake"}])
    assert [next(texts).strip(), next(texts).strip()] == list(texts_of(path)) == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *((name, None) for name in ("a.txt", "a.jsonl", "allenai/c4", ".")),
        *(("a.md", "text\none\n"), ("a", "one"), ("a.parquet", "no parquet"), ("a.txt", ""), ("a.jsonl", "")),
        *(("a.jsonl", content) for content in ('{"body": "one"}\n', '{"text": null}\n', '{"text": 7}\n', "no json\n")),
        ("a.jsonl", '{"text": "one"}\n{"body": "two"}\n'),
    ],
)
def test_a_file_that_cannot_be_used_is_named_in_one_line(tmp_path, name, content):
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    refused(lambda: list(texts_of(path)), str(path))


def test_a_name_that_no_file_can_have_is_refused():
    for name in ("/" + "x" * 300, f"/{'x' * 300}.txt", "x" * 300):
        refused(lambda name=name: list(texts_of(Path(name))))


@pytest.mark.parametrize("text", ["data.xlsx", "he/she", "a.txt", "./a", "/etc/hostname", "allenai/c4"])
def test_a_string_is_a_text_whatever_it_looks_like(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.txt", "what the file holds")
    assert token_set_of(text, lambda texts: texts) == [text]


@pytest.fixture
def streamed(monkeypatch):
    """`load_dataset` on a Hub that knows every dataset: it answers with ROWS or a `side_effect`."""
    load = Mock(return_value=ROWS)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("sinkinterp.data.hub.hub_answers", lambda: True)
    monkeypatch.setattr("datasets.load_dataset", load)
    return load


def test_a_dataset_is_streamed_by_name_configuration_split_and_column(streamed):
    assert list(texts_of("allenai/c4", "body", split="validation", config="en")) == BODIES
    streamed.assert_called_once_with("allenai/c4", "en", split="validation", streaming=True)
    assert list(texts_of("stanfordnlp/imdb")) == TEXTS
    streamed.assert_called_with("stanfordnlp/imdb", None, split="train", streaming=True)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (ValueError("Config name is missing.\nPick one of ['en', 'de']"), "missing. Pick one of ['en', 'de']"),
        (RuntimeError("Dataset scripts are no longer supported"), "scripts are no longer supported"),
        (DatasetNotFoundError("'stanfordnlp/imdb' is a gated dataset"), "is a gated dataset"),
        (ConnectionError(), "ConnectionError"),
    ],
)
def test_a_dataset_that_cannot_be_streamed_says_why_in_one_line(streamed, error, why):
    streamed.side_effect = error
    refused(lambda: next(iter(texts_of("stanfordnlp/imdb"))), why)


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


def test_data_sets_are_named_by_their_names_and_read_only_as_far_as_asked_for(streamed):
    streamed.side_effect = lambda name, *_, **__: ({"body": f"{name} {i}"} for i in itertools.count())
    found = domains_of([texts_of(name, "body") for name in ("a/b", "imdb")], limit=2)
    assert read(found) == [("a/b", ["a/b 0", "a/b 1"]), ("imdb", ["imdb 0", "imdb 1"])]


CHAT = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "That."}]


def test_chats_are_in_the_column_that_is_named(tmp_path):
    path = write_rows(tmp_path / "a.jsonl", [{"id": 1, "messages": CHAT}])
    assert list(texts_of(path, "messages")) == [CHAT]
    refused(lambda: list(texts_of(path)), "column='messages'")


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
        ([{"text": "one", "domain": BODIES}], "domain"),
        ([{"body": "one", "domain": "a"}], "column='body'"),
        ([{}], ""),
    ],
)
def test_a_file_that_names_no_domains_says_which_columns_it_has(tmp_path, rows, column):
    refused(lambda: domains_of(write_rows(tmp_path / "a.jsonl", rows)), column)


def test_a_source_without_domains_is_refused(folder):
    (folder / "law.txt").write_text("more law")
    for source in (folder / "empty", folder / "absent", [], folder):
        refused(partial(domains_of, source))
