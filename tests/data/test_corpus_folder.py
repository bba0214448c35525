import hashlib

import numpy as np
import pytest
from datasets import load_dataset
from hypothesis import given, strategies as st
from refusals import refused

from sinkinterp.data.corpus_folder import Cursor, columns, content_hash, read_shards, shard_path, shards_of, write_shard

DOCUMENTS = st.lists(st.lists(st.integers(0, 96), max_size=17).map(np.array), max_size=13)
SIZES = st.integers(1, 5), st.integers(1, 7)


def cut(documents, rows, width, start=Cursor()):
    return list(shards_of(documents, start, rows, width))


@given(DOCUMENTS, *SIZES)
def test_shards_are_the_stream_but_for_a_remainder_shorter_than_a_chunk(documents, rows, width):
    stream = [token for ids in documents for token in ids.tolist()]
    found = [token for chunks, _ in cut(documents, rows, width) for token in chunks.ravel().tolist()]
    assert found == stream[: len(stream) // width * width]


@given(DOCUMENTS, *SIZES)
def test_every_shard_but_the_last_is_full(documents, rows, width):
    shapes = [chunks.shape for chunks, _ in cut(documents, rows, width)]
    assert all(shape == (rows, width) for shape in shapes[:-1])
    assert all(0 < height <= rows and across == width for height, across in shapes)


@given(DOCUMENTS, *SIZES, st.integers(0, 50))
def test_from_the_end_of_any_shard_on_the_rest_is_the_same(documents, rows, width, which):
    whole = cut(documents, rows, width)
    done = which % len(whole) if whole else 0
    end = whole[done - 1][1] if done else Cursor()
    rest = cut(documents[end.document :], rows, width, end)
    assert [again for _, again in rest] == [first for _, first in whole[done:]]
    assert all(a.tolist() == b.tolist() for (a, _), (b, _) in zip(rest, whole[done:], strict=True))


@given(DOCUMENTS, *SIZES)
def test_after_the_last_shard_nothing_is_left(documents, rows, width):
    whole = cut(documents, rows, width)
    end = whole[-1][1] if whole else Cursor()
    assert end.shards == len(whole)
    assert not whole or not cut(documents[end.document :], rows, width, end)


def test_chunks_worked_by_hand():
    documents = [np.array(ids) for ids in ([5, 6, 0], [0], [7, 8, 9, 10, 0], [11, 0])]
    (first, end), (second, last) = cut(documents, 2, 3)
    assert first.tolist() == [[5, 6, 0], [0, 7, 8]] and end == Cursor(1, 2, 2)
    assert second.tolist() == [[9, 10, 0]] and last == Cursor(2, 4, 0)


@pytest.mark.parametrize(("vocab", "kind"), [(1 << 16, "uint16"), ((1 << 16) + 1, "int32")])
def test_the_largest_id_survives_its_file(tmp_path, vocab, kind):
    chunks = np.array([[0, 1, vocab - 1]])
    write_shard(shard_path(tmp_path, 0), chunks, columns(vocab, 3))
    found = read_shards(tmp_path, 1)
    assert found["tokens"][:].tolist() == chunks.tolist()
    assert found.features["tokens"].feature.dtype == kind


def test_the_hash_is_of_the_ids_and_not_of_how_they_are_cut(tmp_path):
    chunks = np.arange(35).reshape(7, 5)
    for name, parts in {"one": [chunks], "two": [chunks[:3], chunks[3:]]}.items():
        (tmp_path / name).mkdir()
        for i, part in enumerate(parts):
            write_shard(shard_path(tmp_path / name, i), part, columns(35, 5))
    one, two = (content_hash(read_shards(tmp_path / name, n)) for name, n in (("one", 1), ("two", 2)))
    assert one == two == hashlib.sha256(chunks.astype("<i8").tobytes()).hexdigest()


def test_datasets_itself_reads_the_files(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    write_shard(shard_path(tmp_path, 0), np.arange(6).reshape(2, 3), columns(6, 3))
    found = load_dataset("arrow", data_files=str(tmp_path / "*.arrow"), split="train", streaming=True)
    assert [row["tokens"] for row in found] == [[0, 1, 2], [3, 4, 5]]


def test_a_file_that_cannot_be_written_is_an_input_error(tmp_path):
    (tmp_path / "file").touch()
    refused(lambda: write_shard(tmp_path / "file" / "a.arrow", np.zeros((1, 3)), columns(7, 3)))
