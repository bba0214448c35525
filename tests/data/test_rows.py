"""Rows are what their file holds: no blank lines, no shifted cells, whatever packs them."""

import gzip
import json

import pytest
from refusals import refused

from sinkinterp.checks import InputError
from sinkinterp.data.texts import texts as texts_of

ROWS = [{"text": "one,\ntwo", "body": "a"}, {"text": "\u00e9", "body": "b"}]


@pytest.mark.parametrize("between", ["\n\n", "\n\n\n", "\n" * 7, "\n \t\n", "\r\n\r\n\r\n", "\n\n \n"])
def test_a_paragraph_neither_begins_nor_ends_with_a_line_end(tmp_path, between):
    file = tmp_path / "a.txt"
    file.write_bytes(f"{between}one\n  line{between}two{between}".encode())
    assert list(texts_of(file)) == ["one\n  line", "two"]


@pytest.mark.parametrize(
    "content",
    ["text\nwhat, then\n", 'text,b\n"a","b"\n1,2,3\n', "text,b\n1,2,\n", "text,b,c\n1,2,3\n4,5\n", "b,text\n1\n"],
)
def test_a_row_with_other_cells_than_the_header_is_refused_with_its_line(tmp_path, content):
    (tmp_path / "a.csv").write_text(content)
    refused(lambda: list(texts_of(tmp_path / "a.csv")), f"line {content.count(chr(10))}", "text")


@pytest.mark.parametrize("divider", [";", "\t"])
def test_a_file_whose_cells_are_not_divided_by_commas_is_no_column_of_whole_lines(tmp_path, divider):
    (tmp_path / "a.csv").write_text(f"id{divider}text\n1{divider}one\n")
    refused(lambda: list(texts_of(tmp_path / "a.csv")))
    (tmp_path / "a.csv").write_text(f"id,text\n1,one{divider}two\n")
    assert list(texts_of(tmp_path / "a.csv")) == [f"one{divider}two"]


@pytest.mark.parametrize(
    ("rows", "fix"),
    [
        ([{"text": "one", "id": "a"}, {"text": None, "id": "b"}], "leave out rows"),
        ([{"text": None}], "leave out rows"),
        ([{"text": 5}], "as strings"),
        ([{"text": ["one", "two"]}], "as strings"),
        ([{"text": 5, "body": "one"}], "column='body'"),
    ],
)
def test_a_row_without_a_text_names_a_fix_that_is_there(tmp_path, rows, fix):
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(InputError, match=rf"no text in 'text'.*; .*{fix}[^;]*$"):
        list(texts_of(tmp_path / "a.jsonl"))


@pytest.mark.parametrize("content", ["text,text\na,b\n", 'text,b\n"a,b\nc,d\n', "b\na\n"])
def test_a_csv_file_that_is_not_one_is_refused(tmp_path, content):
    (tmp_path / "a.csv").write_text(content)
    refused(lambda: list(texts_of(tmp_path / "a.csv")))


def packed_gz(path, data):
    path.write_bytes(gzip.compress(data))


def packed_zst(path, data):
    path.write_bytes(pytest.importorskip("zstandard").compress(data))


@pytest.mark.parametrize("pack", [packed_gz, packed_zst])
@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".txt"])
def test_a_packed_file_has_the_rows_of_the_plain_one(tmp_path, pack, ending):
    plain = {
        ".jsonl": "\n".join(map(json.dumps, ROWS)),
        ".csv": 'text,body\n"one,\ntwo",a\n\u00e9,b\n',
        ".txt": "one,\ntwo\n\n\n\u00e9\n",
    }[ending]
    file = tmp_path / f"a{ending}.{pack.__name__.removeprefix('packed_')}"
    pack(file, plain.encode())
    assert list(texts_of(file)) == list(texts_of(tmp_path)) == ["one,\ntwo", "\u00e9"]


def test_of_a_csv_file_the_longest_cell_is_the_column_that_is_named_and_a_header_is_asked_for(tmp_path):
    (tmp_path / "a.csv").write_text('id,body\n1,"The harbour, and a wall."\n')
    refused(lambda: list(texts_of(tmp_path / "a.csv")))
