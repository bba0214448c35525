import csv
import gzip
import json
from pathlib import Path
from unittest.mock import Mock

import pyarrow
import pyarrow.parquet
import pytest
from datasets.exceptions import DatasetNotFoundError
from refusals import refused

from sinkinterp.data.texts import texts as texts_of
from sinkinterp.data.tokens import token_set_of


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
    path = write(tmp_path / "a.csv", 'text,b\n7,x\nNA,y\n,z\n"two\nlines",w\none;two,v\n')
    assert list(texts_of(path)) == ["7", "NA", "", "two\nlines", "one;two"]


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


@pytest.mark.parametrize("name", ["t.jsonl", "some/T.CSV", "a.txt.gz", "no_ending"])
def test_a_string_that_names_a_file_is_not_the_name_of_a_data_set(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "no_ending", "one")
    refused(lambda: texts_of(name), f"Path({name!r})")


@pytest.mark.parametrize("wrong", [{"column": 3}, {"split": 3}, {"config": 3}, {"column": None}])
def test_a_column_a_split_or_a_configuration_that_is_no_name_is_refused_before_anything_is_read(wrong):
    refused(lambda: texts_of("allenai/c4", **wrong), "is a name")


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


@pytest.mark.parametrize("between", ["\n\n", "\n\n\n", "\n" * 7, "\n \t\n", "\r\n\r\n\r\n", "\n\n \n"])
def test_a_paragraph_neither_begins_nor_ends_with_a_line_end(tmp_path, between):
    file = tmp_path / "a.txt"
    file.write_bytes(f"{between}one\n  line{between}two{between}".encode())
    assert list(texts_of(file)) == ["one\n  line", "two"]


OTHER_CELLS = (
    *("text\nwhat, then\n", 'text,b\n"a","b"\n1,2,3\n', "text,b\n1,2,\n", "text,b,c\n1,2,3\n4,5\n", "b,text\n1\n"),
    *("text,text\na,b\n", 'text,b\n"a,b\nc,d\n', "b\na\n", "id;text\n1;one\n", "id\ttext\n1\tone\n"),
)


@pytest.mark.parametrize("content", OTHER_CELLS)
def test_a_csv_file_whose_rows_do_not_fit_its_header_is_refused(tmp_path, content):
    refused(lambda: list(texts_of(write(tmp_path / "a.csv", content))), "a.csv")


WITHOUT = [{"text": "one"}, {"text": None}], [{"text": 5}], [{"text": ["one"]}], [{"body": "one"}]


@pytest.mark.parametrize("rows", WITHOUT)
def test_a_row_without_a_text_names_its_columns_and_the_fix(tmp_path, rows):
    refused(lambda: list(texts_of(write_rows(tmp_path / "a.jsonl", rows))), "no text in 'text', only", "column=")


@pytest.mark.parametrize("packed", ["gz", "zst"])
@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".txt"])
def test_a_packed_file_has_the_rows_of_the_plain_one(tmp_path, packed, ending):
    plain, file = tmp_path / f"plain{ending}", tmp_path / "folder" / f"a{ending}.{packed}"
    write(plain, "one,\ntwo\n\n\né\n") if ending == ".txt" else write_rows(plain, ROWS[:2])
    compress = gzip.compress if packed == "gz" else pytest.importorskip("zstandard").compress
    file.parent.mkdir()
    file.write_bytes(compress(plain.read_bytes()))
    assert list(texts_of(file)) == list(texts_of(file.parent)) == ["one,\ntwo", "é"]
