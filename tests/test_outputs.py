"""A file that people asked for carries the hash of its own content, and replaces only a file that does."""

import io
import json
import struct
import zlib
from functools import partial
from pathlib import Path

import pandas
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from refusals import refused

import sinkinterp as si
from sinkinterp import files, seals
from sinkinterp.report.readings import writer_of
from sinkinterp.seals import check_ours, json_bytes, page_bytes, picture_bytes, write_output

HTML = '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>sinks</title></head></html>'
PLAIN = {"title": "a", "note": "b", "rows": [{"x": 1.5, "y": None}], 7: float("nan")}


def png() -> bytes:
    """A picture of one grey point, by the specification of PNG."""
    parts = (b"IHDR" + struct.pack(">2I5B", 1, 1, 8, 0, 0, 0, 0), b"IDAT" + zlib.compress(b"\0\x80"), b"IEND")
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(part) for part in parts)


def _chunk(part: bytes) -> bytes:
    return struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part))


@pytest.fixture(scope="module")
def written():
    """The content of a file of each format, by its suffix."""
    report = si.measure("sinkinterp/demo-softmax", [[3, 1, 4, 1, 5, 2, 6]])
    reports = {suffix: writer_of(f"a{suffix}")(report) for suffix in (".safetensors", ".csv")}
    return reports | {".html": page_bytes(HTML), ".png": picture_bytes(png()), ".json": json_bytes(PLAIN)}


FORMATS = st.sampled_from((".safetensors", ".csv", ".html", ".png"))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(suffix=FORMATS, data=st.data())
def test_a_file_is_ours_as_it_was_written_and_foreign_with_any_byte_changed(suffix, data, written, tmp_path):
    content, file = bytearray(written[suffix]), tmp_path / "file"
    file.write_bytes(content)
    check_ours([file])
    place = data.draw(st.integers(0, min(len(content), 3000) - 1) | st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    file.write_bytes(content)
    refused(lambda: check_ours([file]))


def test_json_is_ours_however_it_is_laid_out_and_foreign_with_any_entry_changed(written, tmp_path):
    plain, file = json.loads(written[".json"]), tmp_path / "file.json"
    for text in (json.dumps(plain), json.dumps(plain, indent=7, sort_keys=True)):
        file.write_text(text)
        check_ours([file])
    for name in plain:
        file.write_text(json.dumps(plain | {name: "mine"}))
        refused(partial(check_ours, [file]))


@pytest.mark.parametrize(
    "content",
    [
        json.dumps({"title": "a", "note": "b", "rows": []}).encode(),
        json.dumps({"protocol": {}, "tables": [], "sha256": "0" * 64}).encode(),
        HTML.encode(),
        png(),
        b"sequence,layer,head,position,importance,mine\n",
        b'{"sinkinterp sha256": "' + b"f" * 64 + b'"}',
        b"[" * 100_000,
    ],
)
def test_a_file_that_only_looks_like_ours_is_refused_and_replaced_with_force(content, tmp_path):
    file = tmp_path / "file"
    file.write_bytes(content)
    refused(lambda: write_output(file, page_bytes(HTML)))
    assert file.read_bytes() == content and list(tmp_path.iterdir()) == [file]
    write_output(file, page_bytes(HTML), force=True)
    write_output(file, page_bytes(HTML))


def test_a_file_that_appears_while_a_file_is_written_is_kept(tmp_path, monkeypatch):
    file = tmp_path / "file"
    monkeypatch.setattr(files, "_flush", lambda draft: file.write_text("mine"))
    refused(lambda: write_output(file, page_bytes(HTML)))
    assert file.read_text() == "mine" and list(tmp_path.iterdir()) == [file]


def test_the_readers_of_a_format_read_a_file_with_its_mark(written, tmp_path):
    assert written[".html"].decode().replace(f"<!-- {_mark(written['.html'])} -->\n", "") == HTML
    table = pandas.read_csv(io.BytesIO(written[".csv"]))
    report = tmp_path / "a.safetensors"
    report.write_bytes(written[".safetensors"])
    expected = si.Report.load(report).to_pandas()
    assert table.columns[-1] == "written by" and table.iloc[1:, -1].isna().all()
    pandas.testing.assert_frame_equal(table.iloc[:, :-1], expected, check_dtype=False, rtol=1e-6)
    assert json.loads(written[".json"])["rows"] == PLAIN["rows"]
    assert torch.isfinite(si.Report.load(report).importance).all()
    chunks, rest = [], written[".png"][8:]
    while rest:
        size = int.from_bytes(rest[:4])
        chunks.append(rest[4 : 8 + size])
        assert rest[8 + size : 12 + size] == struct.pack(">I", zlib.crc32(chunks[-1]))
        rest = rest[12 + size :]
    assert [chunk[:4] for chunk in chunks] == [b"IHDR", b"tEXt", b"IDAT", b"IEND"]


def _mark(content: bytes) -> str:
    found = seals._MARK.search(content)
    assert found is not None
    return found[0].decode()


def test_every_number_file_of_the_figures_carries_its_mark():
    check_ours((Path(__file__).parents[1] / "figures").rglob("*.json"))
