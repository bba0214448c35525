import pytest
import torch
from backends.tiny_gguf import Q4_1, tiny_llama, write_gguf
from refusals import refused

import sinkinterp as si
from sinkinterp.backends.files import model_files, named_models
from sinkinterp.backends.files.model_files import load_tokenizer

TOKENS = torch.randint(37, (3, 11), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("SINKINTERP_CACHE", str(tmp_path / "cache"))
    return write_gguf(tmp_path / "tiny.gguf", tiny_llama(), Q4_1, with_words=True)


def kept(tmp_path):
    return [path for path in (tmp_path / "cache" / "gguf").glob("*") if path.is_dir()]


def test_a_gguf_file_is_dequantised_once_and_reads_the_same_from_the_cache(file, tmp_path, monkeypatch):
    with named_models.without_cache():
        right, words = si.load(file).run(TOKENS).logits, load_tokenizer(file).tokenize("ab  11")
    assert not kept(tmp_path)
    assert si.load(file).run(TOKENS).logits.equal(right)
    assert len(kept(tmp_path)) == 1
    monkeypatch.setattr(model_files, "GgufConfig", None)  # dequantising would fail now
    subject = si.load(file)
    assert subject.run(TOKENS).logits.equal(right) and subject.revision == "GGUF Q4_1, dequantised"
    assert load_tokenizer(file).tokenize("ab  11") == words


def test_a_conversion_belongs_to_the_content_of_a_file_and_not_to_its_name(file, tmp_path):
    old = si.load(file).run(TOKENS).logits
    write_gguf(file, tiny_llama(seed=1), Q4_1, with_words=True)
    assert not si.load(file).run(TOKENS).logits.equal(old) and len(kept(tmp_path)) == 2


def test_a_damaged_conversion_is_refused(file, tmp_path):
    si.load(file)
    weights = kept(tmp_path)[0] / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x55")
    refused(lambda: si.load(file))


def test_without_a_cache_that_can_be_written_the_file_itself_is_read(file, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert si.load(file).run(TOKENS).logits.isfinite().all()


def test_the_option_no_cache_leaves_the_conversion_out(file, tmp_path, call):
    for words in (["--no-cache", "measure", file], ["measure", file, "--no-cache"]):
        code, said = call(*words, "--drawn", "random", "--length", 7, "--sequences", 2)
        assert code == 0, said
    assert not kept(tmp_path)
