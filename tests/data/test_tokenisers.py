from functools import partial

import pytest
from refusals import refused

from sinkinterp.data import tokenisers
from sinkinterp.data.tokenisers import BOS, EOS, ByteBPE, Pretrained, encoded, pretrained_tokenizer

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
    monkeypatch.setattr(tokenisers, "BATCH_CHARACTERS", 7)
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
