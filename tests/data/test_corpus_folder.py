import hashlib
from collections import Counter

import numpy as np
import pytest
import torch
from datasets import load_dataset
from hypothesis import example, given, strategies as st

from sinkinterp.data.corpus_folder import Cursor, columns, content_hash, read_shards, shard_path, shards_of, write_shard
from sinkinterp.data.draws import MAX_STRETCHES, Split, stretches

DOCUMENTS = st.lists(st.lists(st.integers(0, 96), max_size=17).map(np.array), max_size=13)
SIZES = st.integers(1, 5), st.integers(1, 7)


def cut(documents, rows, width, start=Cursor()):
    return list(shards_of(documents, start, rows, width))


@given(DOCUMENTS, *SIZES)
def test_full_shards_and_a_last_one_are_the_stream_but_for_a_remainder_shorter_than_a_chunk(documents, rows, width):
    stream = [token for ids in documents for token in ids.tolist()]
    shards = [chunks for chunks, _ in cut(documents, rows, width)]
    assert [token for chunks in shards for token in chunks.ravel().tolist()] == stream[: len(stream) // width * width]
    assert all(chunks.shape == (rows, width) for chunks in shards[:-1])
    assert all(0 < chunks.shape[0] <= rows and chunks.shape[1] == width for chunks in shards)


@given(DOCUMENTS, *SIZES, st.integers(0, 50))
def test_from_the_end_of_any_shard_on_the_rest_is_the_same(documents, rows, width, which):
    whole = cut(documents, rows, width)
    done = which % (len(whole) + 1)
    end = whole[done - 1][1] if done else Cursor()
    assert end.shards == done
    rest = cut(documents[end.document :], rows, width, end)
    assert [again for _, again in rest] == [first for _, first in whole[done:]]
    assert all(a.tolist() == b.tolist() for (a, _), (b, _) in zip(rest, whole[done:], strict=True))


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


NUMBERS = st.integers(2, 400)
SHARES = st.floats(0.01, 0.99)


@given(NUMBERS, SHARES, SHARES)
def test_no_held_out_chunk_is_trained_on_and_none_is_lost(chunks, held_out, share):
    split = Split.of(chunks, held_out, 1.0)
    assert sorted([*split.training.tolist(), *split.held_out.tolist()]) == list(range(chunks))
    assert len(split.held_out) >= 1 and len(Split.of(chunks, held_out, share).training) >= 1


@given(NUMBERS, SHARES, SHARES, SHARES)
def test_a_smaller_share_is_nested_in_a_larger_one_beside_the_same_held_out_chunks(chunks, held_out, a, b):
    small, large = (Split.of(chunks, held_out, share) for share in sorted((a, b)))
    assert small.training.equal(large.training[: len(small.training)])
    assert small.held_out.equal(large.held_out)


def test_a_split_takes_the_shares_it_is_asked_for():
    split = Split.of(1000, 0.1, 0.25)
    assert (len(split.training), len(split.held_out)) == (225, 100)


@example(1873, 0.98828125)
@given(st.integers(2, 5000), SHARES)
def test_stretches_lie_apart_at_the_ends_of_equal_parts_and_hold_as_many_chunks_as_are_asked_for(chunks, held_out):
    asked = min(chunks - 1, max(1, round(held_out * chunks)))
    found = stretches(chunks, asked)
    assert 1 <= len(found) <= MAX_STRETCHES and found[-1].stop == chunks and found[0].start >= 0
    assert len({i for stretch in found for i in stretch}) == sum(map(len, found)) == asked
    assert len(found) == 1 or min(map(len, found)) >= 64


def test_stretches_of_a_small_corpus_worked_by_hand():
    assert stretches(11, 3) == [range(8, 11)]
    assert stretches(1000, 129) == [range(436, 500), range(935, 1000)]


def test_what_is_trimmed_from_a_stretch_is_in_neither_part():
    split = Split.of(1000, 0.129, 1.0, lambda stretch: stretch[2:-3])
    assert sorted(split.held_out.tolist()) == [*range(438, 497), *range(937, 997)]
    assert sorted(split.training.tolist()) == [*range(436), *range(500, 935)]


def test_stretches_that_would_be_trimmed_away_are_kept_whole():
    assert Split.of(11, 0.3, 1.0, lambda stretch: range(0)).held_out.equal(Split.of(11, 0.3, 1.0).held_out)


@given(st.integers(2, 60), st.integers(1, 130), st.integers(1, 5))
def test_every_chunk_is_drawn_once_an_epoch_however_large_the_batch(chunks, n, epochs):
    split = Split.of(chunks, 0.2, 1.0)
    size = len(split.training)
    drawn = torch.cat([split.batch(n, 5, step) for step in range(1, epochs * size // n + 2)]).tolist()
    assert len(drawn) >= epochs * size
    for epoch in range(epochs):
        assert Counter(drawn[epoch * size : (epoch + 1) * size]) == Counter(split.training.tolist())


def test_the_order_is_another_one_in_each_epoch_and_for_each_seed():
    split = Split.of(101, 0.1, 1.0)
    size = len(split.training)
    orders = [split.batch(size, seed, step) for seed, step in ((0, 1), (0, 2), (1, 1))]
    assert not any(a.equal(b) for i, a in enumerate(orders) for b in orders[:i])
    assert split.batch(size, 0, 2).equal(orders[1])
