import hashlib
import json
import os
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from refusals import refused
from sinkinterp._experiments.shared.tasks import FixedAt, RandomAt

from sinkinterp.data import packing, tokenizers
from sinkinterp.data.packing import IDS, RECORD, Corpus, Cursor, PackedText, blocks_of, trimmed
from sinkinterp.data.sources import Source
from sinkinterp.data.texts import Texts
from sinkinterp.data.tokenizers import BOS, EOS, ByteBPE, Pretrained, beginning_with_bos, encoded, pretrained_tokenizer
from sinkinterp.spec import Spec

WORDS = ["attention", "sinks", "gather", "on", "first", "tokens", "whose", "values", "are", "small"]
RNG = np.random.default_rng(11)
DOCUMENTS = [" ".join(RNG.choice(WORDS, size=RNG.integers(0, 40))) for _ in range(101)]


class SourceOfThisTest(Source):
    size: int = len(DOCUMENTS)

    def texts(self, cache, on_file=lambda done, total: None):
        return DOCUMENTS[: self.size]

    def fingerprint(self):
        return ""

    def changed_since(self, fingerprint):
        return False


PACKED = PackedText(SourceOfThisTest(), ByteBPE(277), length=23, held_out=0.1)


@pytest.fixture
def many_blocks(monkeypatch):
    monkeypatch.setattr(tokenizers, "BATCH_CHARACTERS", 997)
    monkeypatch.setattr(packing, "BLOCK", 1009)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return PACKED.prepare(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in DOCUMENTS))
    return path


def written(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def rows(tokens):
    return {tuple(row) for row in tokens.tolist()}


def test_chunks_with_eos_between_them_are_the_documents(prepared):
    decode, eos = prepared.tokenizer().decode, prepared.tokenizer().eos_token_id
    stream, found = prepared.chunks.flatten().tolist(), [[]]
    for token in stream:
        found.append([]) if token == eos else found[-1].append(token)
    *whole, last = [decode(ids) for ids in found]
    assert len(whole) > 90 and whole == DOCUMENTS[: len(whole)]
    assert DOCUMENTS[len(whole)].startswith(last) if len(whole) < len(DOCUMENTS) else not last


def test_with_bos_the_same_stream_stands_behind_one_bos_per_chunk(prepared, tmp_path):
    with_bos = replace(PACKED, bos=True, length=24).prepare(tmp_path)
    assert (with_bos.chunks[:, 0] == with_bos.tokenizer().bos_token_id).all()
    assert (with_bos.chunks[:, 1:] == prepared.chunks).all()
    with_bos.tokenizer().save_pretrained(tmp_path / "kept")
    plain, begun = prepared.tokenizer()("on first")["input_ids"], pretrained_tokenizer(str(tmp_path / "kept"))
    assert begun("on first")["input_ids"] == [begun.bos_token_id, *plain]
    assert beginning_with_bos(begun)("on first")["input_ids"] == [begun.bos_token_id, *plain]


def test_what_is_drawn_are_chunks_and_held_out_ones_are_never_trained_on(prepared):
    held_out = prepared.sample(len(prepared.split.held_out), "held out")
    trained = torch.cat([prepared.sample(7, 3, step) for step in range(1, 47)])
    assert held_out.dtype == trained.dtype == torch.int64 and trained.shape[1] == prepared.length == 23
    assert rows(held_out) | rows(trained) <= rows(prepared.chunks)
    assert not rows(held_out) & rows(trained)
    assert len(rows(prepared.chunks) - rows(held_out) - rows(trained)) <= 4  # where a document crosses the border


@pytest.mark.parametrize("bos", [False, True])
def test_no_document_is_both_held_out_and_trained_on(prepared, tmp_path, monkeypatch, bos):
    monkeypatch.setattr("sinkinterp.data.draws.STRETCH", 7)
    task = replace(PACKED, held_out=0.3, bos=bos, length=23 + bos).prepare(tmp_path)
    ids = task.chunks[:, int(bos) :]
    ends = ids.flatten() == task.tokenizer().eos_token_id
    documents = (ends.cumsum() - ends).reshape(ids.shape)  # the number of the document that each token belongs to
    held_out, trained = (
        set(documents[chunks.tolist()].flatten().tolist()) for chunks in (task.split.held_out, task.split.training)
    )
    assert len(held_out) > 10 and len(trained) > 50 and not held_out & trained


@pytest.mark.parametrize(
    ("text", "stretch", "want"),
    [  # a dot ends a document
        ("aaa. bbb. ccc. ddd. eee.", range(1, 3), range(1, 3)),
        ("aaab bb.c cccc cc.d eeee", range(1, 4), range(2, 3)),
        ("aaab bb.c c.dd dd.e eeee", range(1, 4), range(2, 3)),
        ("aaab b.cc cccc cc.d d.ee", range(1, 5), range(2, 5)),
        ("aaaa aaaa aaaa aaaa aaaa", range(3, 5), range(0)),
        ("aaa. bb.b bbbb bccc cccc", range(1, 4), range(0)),
        ("aaa. bb.b b.bb bccc cccc", range(1, 4), range(1, 2)),
    ],
)
def test_what_stays_of_a_stretch_worked_by_hand(text, stretch, want):
    chunks = np.array([[*map(ord, f".{chunk}")] for chunk in text.split()])
    assert trimmed(chunks, ord("."), 1, stretch) == want


def test_a_sample_is_a_pure_function_of_its_stream(prepared):
    a = prepared.sample(5, 0, 3)
    assert prepared.sample(5, 0, 3).equal(a)
    assert not any(prepared.sample(5, *stream).equal(a) for stream in ((0, 2), (1, 3), ("held out",)))
    assert prepared.sample(3, "held out").equal(prepared.sample(5, "held out")[:3])


def test_edits_are_made_in_order_in_training_and_held_out_sequences(prepared):
    edits = (RandomAt(0, 3, redraw=False), FixedAt(1, 5))
    edited = replace(PACKED, edits=edits).prepare(prepared.folder.parents[1])
    for stream in ((0, 4), ("held out",)):
        plain, found = prepared.sample(7, *stream), edited.sample(7, *stream)
        assert found[:, 1].eq(5).all() and found[:, 3:].equal(plain[:, 3:])
        assert not found[:, 0].equal(plain[:, 0])


def test_recipes_that_only_draw_otherwise_share_their_chunks(prepared):
    cache = prepared.folder.parents[1]
    drawn = [{"share": 0.5}, {"held_out": 0.2}, {"edits": (FixedAt(0, 1),)}]
    packed = [{"length": 29}, {"bos": True}, {"tokenizer": ByteBPE(278)}, {"source": SourceOfThisTest(7)}]
    assert {replace(PACKED, **change).folder(cache) for change in drawn} == {prepared.folder}
    assert len({replace(PACKED, **change).folder(cache) for change in packed} | {prepared.folder}) == 5
    assert len({PACKED.key()} | {replace(PACKED, **change).key() for change in drawn}) == 4
    for recipe in (replace(PACKED, **change) for change in (*drawn, *packed)):
        assert Spec.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe


def test_a_prepared_recipe_names_its_text_and_holds_to_it(prepared, tmp_path):
    named, cache = prepared.recipe, prepared.folder.parents[1]
    assert named == replace(PACKED, sha256=prepared.sha256) and named.folder(cache) == prepared.folder
    assert "sha256" not in PACKED.to_dict() and Spec.from_dict(named.to_dict()) == named
    assert named.prepare(cache).sample(3, 0, 1).equal(prepared.sample(3, 0, 1))
    refused(lambda: replace(named, source=SourceOfThisTest(50)).prepare(tmp_path), prepared.sha256[:12])


def test_packing_twice_gives_the_same_bytes_and_counts_documents_the_first_time(prepared, tmp_path, monkeypatch):
    told = []
    again = PACKED.prepare(tmp_path, lambda done, of: told.append((done, of)))
    assert told == [(i, len(DOCUMENTS)) for i in range(1, len(DOCUMENTS) + 1)]
    assert again.sha256 == prepared.sha256 and written(again.folder) == written(prepared.folder)
    names = {"lock", RECORD, IDS, "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in written(again.folder)} == names
    monkeypatch.setattr(packing.Corpus, "_pack", None)
    found = PACKED.prepare(tmp_path, lambda *_: told.append("packed again"))
    assert found.sample(3, 0, 1).equal(prepared.sample(3, 0, 1)) and told[-1] != "packed again"


def test_blocks_and_interruptions_at_any_write_change_nothing(prepared, tmp_path, many_blocks, monkeypatch):
    whole, fsync = written(prepared.folder), os.fsync
    writes = 0

    def interrupted(file):
        nonlocal writes
        writes += 1
        if writes % 5 == 0:  # each run is stopped at its fifth write, so that the runs stop at every kind of write
            raise KeyboardInterrupt
        fsync(file)

    monkeypatch.setattr("os.fsync", interrupted)
    found, stops = None, 0
    while found is None and stops < 30:
        writes = 0
        try:
            found = PACKED.prepare(tmp_path / "cut")
        except KeyboardInterrupt:
            stops += 1
            assert not list((tmp_path / "cut").rglob(".draft-*"))
    assert stops > 3 and written(found.folder) == whole and found.sha256 == prepared.sha256


def test_a_text_that_changed_after_it_was_packed_is_refused_and_one_that_is_gone_is_not(tmp_path, file):
    recipe = replace(PACKED, source=Texts(str(file)))
    first = recipe.prepare(tmp_path)
    content = file.read_text()
    file.write_text(content.replace("sinks", "ships"))
    refused(lambda: recipe.prepare(tmp_path))
    file.unlink()
    assert recipe.prepare(tmp_path).sha256 == first.sha256


def test_a_text_that_changed_while_it_was_packed_is_packed_from_its_beginning(tmp_path, many_blocks, file, monkeypatch):
    recipe = replace(PACKED, source=Texts(str(file)))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(packing, "_has_words", stop)
        recipe.prepare(tmp_path / "cut")
    file.write_text("\n".join(json.dumps({"text": text.upper()}) for text in DOCUMENTS[:50]))
    found = recipe.prepare(tmp_path / "cut")
    assert written(found.folder) == written(recipe.prepare(tmp_path / "whole").folder)


def stop(*_):
    raise KeyboardInterrupt


def test_a_corpus_that_cannot_be_packed_or_drawn_names_the_fix(prepared, tmp_path):
    for length in (60, 10_000):
        recipe = replace(PACKED, source=SourceOfThisTest(2), length=length)
        refused(partial(recipe.prepare, tmp_path), f"chunks of {length} tokens", "smaller length")
    refused(lambda: prepared.sample(10_000, "held out"))
    tokenizer = prepared.tokenizer()
    tokenizer.bos_token = None
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    refused(
        lambda: replace(PACKED, tokenizer=Pretrained(277, str(tmp_path / "tokenizer")), bos=True).prepare(tmp_path),
        "bos",
    )


@pytest.mark.parametrize(
    "wrong",
    [
        *({"length": 1}, {"length": 2, "bos": True}, {"held_out": 0.0}, {"held_out": 1.0}, {"share": 0.0}),
        *({"share": 1.1}, {"edits": (FixedAt(23, 0),)}, {"edits": (FixedAt(0, 277),)}, {"edits": (RandomAt(0, 24),)}),
    ],
)
def test_a_recipe_that_makes_no_sense_is_refused(wrong):
    refused(lambda: replace(PACKED, **wrong))


IDS_OF_DOCUMENTS = st.lists(st.lists(st.integers(0, 96), max_size=17).map(partial(np.array, dtype=int)), max_size=13)
SIZES = st.integers(1, 5), st.integers(1, 7)


def cut(documents, rows, width, start=Cursor()):
    return list(blocks_of(documents, start, rows, width))


@given(IDS_OF_DOCUMENTS, *SIZES)
def test_full_blocks_and_a_last_one_are_the_stream_but_for_a_remainder_shorter_than_a_chunk(documents, rows, width):
    stream = [token for ids in documents for token in ids.tolist()]
    blocks = [chunks for chunks, _ in cut(documents, rows, width)]
    assert [token for chunks in blocks for token in chunks.ravel().tolist()] == stream[: len(stream) // width * width]
    assert all(chunks.shape == (rows, width) for chunks in blocks[:-1])
    assert all(0 < chunks.shape[0] <= rows and chunks.shape[1] == width for chunks in blocks)


@given(IDS_OF_DOCUMENTS, *SIZES, st.integers(0, 50))
def test_from_the_end_of_any_block_on_the_rest_is_the_same(documents, rows, width, which):
    whole = cut(documents, rows, width)
    done = which % (len(whole) + 1)
    end = whole[done - 1][1] if done else Cursor()
    assert end.chunks == sum(len(chunks) for chunks, _ in whole[:done])
    rest = cut(documents[end.document :], rows, width, end)
    assert [again for _, again in rest] == [first for _, first in whole[done:]]
    assert all(a.tolist() == b.tolist() for (a, _), (b, _) in zip(rest, whole[done:], strict=True))


def test_chunks_worked_by_hand():
    documents = [np.array(ids) for ids in ([5, 6, 0], [0], [7, 8, 9, 10, 0], [11, 0])]
    (first, end), (second, last) = cut(documents, 2, 3)
    assert first.tolist() == [[5, 6, 0], [0, 7, 8]] and end == Cursor(2, 2, 2)
    assert second.tolist() == [[9, 10, 0]] and last == Cursor(3, 4, 0)


@pytest.mark.parametrize(("vocab", "kind"), [(1 << 16, "uint16"), ((1 << 16) + 1, "int32")])
def test_the_largest_id_survives_its_file(tmp_path, vocab, kind):
    corpus = Corpus(replace(PACKED, tokenizer=ByteBPE(vocab), length=3), tmp_path)
    np.array([0, 1, vocab - 1], kind).tofile(tmp_path / IDS)
    assert corpus.chunks(1).tolist() == [[0, 1, vocab - 1]] and corpus.chunks(1).dtype == kind


def test_the_hash_of_a_corpus_is_that_of_its_ids(prepared):
    assert prepared.sha256 == hashlib.sha256(prepared.chunks.astype("<i8").tobytes()).hexdigest()


TEXTS = [
    "the cat sat on the mat", "", "naïve café 猫 \N{GRINNING FACE}\n\ttabs", f"a text that says {EOS} and {BOS}.",
] * 5  # fmt: skip


@pytest.fixture(scope="module")
def bpe():
    return ByteBPE(vocab=263).make(TEXTS)


def test_eos_and_bos_come_first_then_bytes_then_merges(bpe):
    assert (bpe.eos_token_id, bpe.bos_token_id, len(bpe)) == (0, 1, 263)
    assert len({len(bpe.convert_ids_to_tokens(i)) for i in range(2, 258)}) == 1


def test_every_text_comes_back_from_its_ids_with_eos_at_its_end_alone_though_texts_spell_it(bpe):
    found = [*encoded(TEXTS, bpe)]
    assert [bpe.decode(ids[:-1]) for ids in found] == TEXTS
    assert all(ids[-1] == 0 and not (ids[:-1] <= 1).any() for ids in found)


def test_texts_have_the_same_ids_however_they_are_batched(bpe, monkeypatch):
    found = [ids.tolist() for ids in encoded(TEXTS, bpe)]
    monkeypatch.setattr(tokenizers, "BATCH_CHARACTERS", 7)
    assert [ids.tolist() for ids in encoded(iter(TEXTS), bpe)] == found


def test_training_twice_gives_the_same_tokenizer_and_reads_no_more_documents_than_asked(bpe):
    def texts():
        yield from TEXTS
        raise AssertionError("read too far")

    again = ByteBPE(vocab=263, documents=len(TEXTS)).make(texts())
    assert again.backend_tokenizer.to_str() == bpe.backend_tokenizer.to_str()


def test_a_saved_tokenizer_is_pretrained(bpe, tmp_path):
    bpe.save_pretrained(tmp_path)
    found = Pretrained(300, str(tmp_path)).make([])
    assert [ids.tolist() for ids in encoded(TEXTS, found)] == [ids.tolist() for ids in encoded(TEXTS, bpe)]
    refused(lambda: Pretrained(262, str(tmp_path)).make([]))


def test_a_tokenizer_without_eos_or_that_is_not_there_is_refused(bpe, tmp_path):
    type(bpe)(tokenizer_object=bpe.backend_tokenizer).save_pretrained(tmp_path)
    refused(lambda: Pretrained(300, str(tmp_path)).make([]))
    refused(lambda: pretrained_tokenizer(str(tmp_path / "nowhere")))


def test_what_no_tokenizer_can_be_trained_from_is_refused_and_258_symbols_are_enough():
    for wrong in ({"vocab": 257}, {"documents": 0}):
        refused(partial(ByteBPE, **wrong))
    assert len(ByteBPE(vocab=258).make(TEXTS)) == 258
