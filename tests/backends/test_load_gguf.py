import sys

import pytest
import torch
from backends.tiny_gguf import F32, Q4_1, WORDS, tiny_llama, write_gguf
from refusals import refused
from transformers import AutoModelForCausalLM

import sinkinterp as si
from sinkinterp.backends import model_files as files
from sinkinterp.backends.load import BACKENDS
from sinkinterp.backends.model_files import load_model, load_tokenizer
from sinkinterp.files import Damaged, seal

TOKENS = torch.randint(37, (3, 11), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model():
    return tiny_llama()


@pytest.mark.parametrize(("quantisation", "name"), [(F32, "F32"), (Q4_1, "Q4_1")])
def test_a_gguf_file_has_the_logits_of_transformers_own_reader_and_a_report_says_so(
    tmp_path, model, quantisation, name
):
    file = write_gguf(tmp_path / "tiny.gguf", model, quantisation)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.float32)
    subject = si.load(file)
    assert subject.dtype == torch.float32
    with torch.no_grad():
        assert subject.run(TOKENS).logits.equal(theirs(TOKENS).logits)
        if quantisation == F32:  # it is the model that was written
            torch.testing.assert_close(subject.run(TOKENS).logits, model(TOKENS).logits, rtol=0, atol=1e-5)
    protocol = si.measure(subject, TOKENS).protocol
    assert protocol.model == str(file) and protocol.revision == f"GGUF {name}, dequantised"


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_reads_a_gguf_file(tmp_path, model, backend):
    file = write_gguf(tmp_path / "tiny.gguf", model, Q4_1)
    report = si.measure(si.load(file, backend=backend), TOKENS)
    want = si.measure(si.load(load_model(file)), TOKENS)
    torch.testing.assert_close(report.importance, want.importance, rtol=0, atol=1e-5)


def test_a_quantisation_without_a_name_is_left_out(tmp_path, model, monkeypatch):
    monkeypatch.setattr(files, "gguf_metadata", lambda file: {"general.file_type": 99_999})
    (tmp_path / "tiny.gguf").touch()
    assert files.origin_of(tmp_path / "tiny.gguf") == "GGUF, dequantised"


def test_the_tokenizer_of_a_gguf_file_reads_text_and_one_without_has_none(tmp_path, model):
    file = write_gguf(tmp_path / "tiny.gguf", model, with_words=True)
    tokenizer = load_tokenizer(file)
    assert tokenizer("ab", add_special_tokens=False)["input_ids"] == [WORDS.index("ab")]
    assert si.load(file).label(WORDS.index("ab")) == "ab"
    assert load_tokenizer(write_gguf(tmp_path / "bare.gguf", model)) is None


def test_a_relative_path_and_a_link_are_followed_and_the_model_is_plain_and_can_be_saved(tmp_path, model, monkeypatch):
    (tmp_path / "inside").mkdir()
    write_gguf(tmp_path / "inside" / "tiny.gguf", model, Q4_1)
    (tmp_path / "link.gguf").symlink_to("inside/tiny.gguf")
    monkeypatch.chdir(tmp_path)
    load_model("link.gguf").save_pretrained("folder")
    logits = [si.load(source).run(TOKENS).logits for source in ("inside/tiny.gguf", "link.gguf", "./folder")]
    assert logits[0].equal(logits[1]) and logits[0].equal(logits[2])


@pytest.mark.parametrize(("first", "last"), [(0, 0), (0, 3), (0, 100), (0, -1000), (7, None)])
def test_a_damaged_gguf_file_is_refused_in_one_line(tmp_path, model, first, last):
    file = write_gguf(tmp_path / "tiny.gguf", model)
    file.write_bytes(file.read_bytes()[first:last])
    refused(lambda: si.load(file))


def test_a_flipped_bit_of_a_gguf_file_is_noticed_where_its_hash_lies_beside_it(tmp_path, model):
    file = write_gguf(tmp_path / "tiny.gguf", model)
    seal(tmp_path)
    assert si.load(file).revision.startswith("GGUF")
    content = bytearray(file.read_bytes())
    content[-99] ^= 1
    file.write_bytes(content)
    with pytest.raises(Damaged, match=r"tiny\.gguf is damaged"):
        si.load(file)


def test_without_the_package_gguf_the_fix_is_said(tmp_path, model, monkeypatch):
    file = write_gguf(tmp_path / "tiny.gguf", model)
    monkeypatch.setitem(sys.modules, "gguf", None)
    refused(lambda: si.load(file))
