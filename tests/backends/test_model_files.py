"""A name, a file or a folder is looked at before a model is built, and what is there is read or said."""

import json
import sys
from types import SimpleNamespace

import gguf
import pytest
import torch
import transformers
from backends.tiny_gguf import F32, Q4_1, WORDS, tiny_llama, write_gguf
from backends.zoo import bare_logits, model_of
from refusals import refused
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import sinkinterp as si
from sinkinterp.backends import model_files, weights
from sinkinterp.backends.model_files import load_model, load_tokenizer, origin_of
from sinkinterp.backends.named_models import located
from sinkinterp.files import Damaged, cache_folder, seal

TOKENS = torch.randint(37, (2, 23), generator=torch.Generator().manual_seed(0))


def saved(folder, **more):
    model = tiny_llama(seed=0)
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | more))
    return model


@pytest.mark.parametrize("sizes", [{}, {"block_count": 2}, {"block_count": 32, "embedding_length": 4096}], ids=str)
def test_a_gguf_file_of_other_sizes_than_its_tensors_is_refused_before_a_model_is_built(sizes, tmp_path, monkeypatch):
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "llama")
    for name, size in sizes.items():
        getattr(writer, f"add_{name}")(size)
    writer.add_tensor("token_embd.weight", torch.ones(37, 32).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    monkeypatch.setattr("transformers.PreTrainedModel.__init__", None)  # a model that is built fails
    refused(lambda: si.load(tmp_path / "tiny.gguf"), "llama." if len(sizes) < 2 else "32 layers of 4,096")


def test_a_folder_that_is_not_a_model_of_transformers_is_refused(tmp_path):
    model = tiny_llama()
    (tmp_path / "ckpt.pt").touch()
    refused(lambda: si.load(tmp_path), "holds no config.json", "it holds ckpt.pt;", "save_pretrained")
    (tmp_path / "unet").mkdir()
    (tmp_path / "unet" / "config.json").write_text("{}")
    refused(lambda: si.load(tmp_path), "it holds ckpt.pt, unet;")
    for step in (500, 1000):
        model.save_pretrained(tmp_path / f"checkpoint-{step}")
    refused(lambda: si.load(tmp_path), f"such as {tmp_path / 'checkpoint-1000'}")
    si.load(tmp_path / "checkpoint-1000")  # the fix
    write_gguf(tmp_path / "tiny.gguf", model)
    refused(lambda: si.load(tmp_path), f"such as {tmp_path / 'tiny.gguf'}")
    si.load(tmp_path / "tiny.gguf")  # the fix
    saved(tmp_path / "model")
    for name in ("config.json", "model.safetensors"):
        refused(lambda name=name: si.load(tmp_path / "model" / name), "is a file, and not GGUF", "save_pretrained")
    si.load(tmp_path / "model")  # the fix
    (tmp_path / "model" / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "model" / "pytorch_model.bin")
    refused(lambda: si.load(tmp_path / "model"), "holds no .safetensors weights", "save_pretrained")
    LlamaForCausalLM.from_pretrained(tmp_path / "model").save_pretrained(tmp_path / "model")
    si.load(tmp_path / "model")  # the fix


def test_a_file_is_gguf_by_its_first_bytes(tmp_path):
    for name in ("A.GGUF", "sha256-0123"):
        si.load(write_gguf(tmp_path / "tiny.gguf", tiny_llama()).rename(tmp_path / name))


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_a_gguf_file_of_llama_3_is_rotated_as_the_model_that_it_was_made_of(factor, tmp_path):
    rope = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192, "rope_theta": 500000.0}  # fmt: skip
    config = LlamaConfig(
        vocab_size=37, hidden_size=32, intermediate_size=96, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=131072, tie_word_embeddings=False, initializer_range=0.3,
        rope_parameters=rope,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    plain = 500000.0 ** -(torch.arange(0, 16, 2) / 16)
    factors = plain / model.model.rotary_emb.inv_freq
    assert factors.max() == pytest.approx(factor)
    subject = si.load(write_gguf(tmp_path / "tiny.gguf", model, more={"rope_freqs.weight": factors}))
    torch.testing.assert_close(subject.run(TOKENS).logits, bare_logits(model, TOKENS), rtol=0, atol=1e-5)
    assert subject.model.config.rope_parameters["factor"] == pytest.approx(factor)
    other = write_gguf(tmp_path / "other.gguf", model, more={"rope_freqs.weight": 0 * factors + 3})
    refused(lambda: si.load(other), "holds rope_freqs.weight")


def test_an_adapter_whose_base_is_not_here_is_said_to_be_one(tmp_path):
    config = {"peft_type": "LORA", "base_model_name_or_path": str(tmp_path / "away" / "llama")}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    refused(lambda: si.load(tmp_path), "is an adapter of a model that is not here", "away")


@pytest.mark.parametrize(
    "how", [{}, {"quantization_config": {"bits": 4}}, {"quantization_config": {"quant_method": "exl2"}}]
)
@pytest.mark.parametrize("name", ["qweight", "q_weight", "weight"])
def test_weights_that_are_quantised_as_transformers_does_not_read_are_refused(how, name, tmp_path):
    place = "model.layers.0.mlp.up_proj"
    weights = {name: x.contiguous() for name, x in saved(tmp_path, **how).state_dict().items()}
    weights[f"{place}.{name}"] = weights.pop(f"{place}.weight").int()
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    refused(lambda: si.load(tmp_path), f"holds {place}.{name} as I32, which is not a weight")


def test_weights_that_bitsandbytes_rounded_are_left_to_transformers(tmp_path):
    held = saved(tmp_path, quantization_config={"load_in_8bit": True}).state_dict()
    save_file({name: x.contiguous().to(torch.int8) for name, x in held.items()}, tmp_path / "model.safetensors")
    assert "is not a weight" not in refused(lambda: si.load(tmp_path))


def test_a_part_that_is_absent_is_named(tmp_path):
    tiny_llama().save_pretrained(tmp_path, max_shard_size="20KB")
    part = sorted(tmp_path.glob("model-*"))[1]
    kept = part.read_bytes()
    part.unlink()
    refused(lambda: si.load(tmp_path), part.name)
    part.write_bytes(kept)
    si.load(tmp_path)


def test_a_folder_of_a_model_that_also_sees_is_measured_on_text_as_the_model_in_memory(tmp_path):
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    text = LlamaConfig(vocab_size=37, initializer_range=0.3, **sizes)
    image = transformers.CLIPVisionConfig(image_size=16, patch_size=8, **sizes)
    config = transformers.LlavaConfig(text_config=text, vision_config=image, image_token_index=36)
    model = transformers.LlavaForConditionalGeneration(config).eval()
    model.save_pretrained(tmp_path)
    right, tokens = si.measure(model, TOKENS % 36, progress=False).alpha(), TOKENS % 36
    torch.testing.assert_close(si.measure(tmp_path, tokens, progress=False).alpha(), right)


def test_a_transformers_and_a_lens_that_are_too_old_are_refused_with_the_version_to_use(tmp_path, monkeypatch):
    file = write_gguf(tmp_path / "tiny.gguf", tiny_llama())
    monkeypatch.setattr(weights, "transformers", SimpleNamespace(__version__="5.2.0"))
    refused(lambda: si.load(file), "5.2.0 does not read")
    monkeypatch.delattr("transformer_lens.model_bridge.sources.build_bridge_from_module")
    refused(lambda: si.load(model_of("gpt2"), backend="transformer_lens"), "use 4.3 or newer")


# GGUF


@pytest.mark.parametrize(("quantisation", "name"), [(F32, "F32"), (Q4_1, "Q4_1")])
def test_a_gguf_file_has_the_logits_of_transformers_own_reader_and_a_report_says_so(tmp_path, quantisation, name):
    file = write_gguf(tmp_path / "tiny.gguf", model := tiny_llama(), quantisation)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.float32)
    subject = si.load(file)
    assert subject.dtype == torch.float32 and subject.run(TOKENS).logits.equal(bare_logits(theirs, TOKENS))
    if quantisation == F32:  # it is the model that was written
        torch.testing.assert_close(subject.run(TOKENS).logits, bare_logits(model, TOKENS), rtol=0, atol=1e-5)
    protocol = si.measure(subject, TOKENS).protocol
    assert protocol.model == str(file) and protocol.revision == f"GGUF {name}, dequantised"


def test_a_quantisation_without_a_name_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(model_files, "gguf_metadata", lambda file: {"general.file_type": 99_999})
    (tmp_path / "tiny.gguf").touch()
    assert origin_of(tmp_path / "tiny.gguf") == "GGUF, dequantised"


def test_the_tokenizer_of_a_gguf_file_reads_text_and_one_without_has_none(tmp_path):
    file = write_gguf(tmp_path / "tiny.gguf", tiny_llama(), with_words=True)
    tokenizer = load_tokenizer(file)
    assert tokenizer("ab", add_special_tokens=False)["input_ids"] == [WORDS.index("ab")]
    assert si.load(file).label(WORDS.index("ab")) == "ab"
    assert load_tokenizer(write_gguf(tmp_path / "bare.gguf", tiny_llama())) is None


def test_a_relative_path_and_a_link_are_followed_and_the_model_is_plain_and_can_be_saved(tmp_path, monkeypatch):
    (tmp_path / "inside").mkdir()
    write_gguf(tmp_path / "inside" / "tiny.gguf", tiny_llama(), Q4_1)
    (tmp_path / "link.gguf").symlink_to("inside/tiny.gguf")
    monkeypatch.chdir(tmp_path)
    load_model("link.gguf").save_pretrained("folder")
    logits = [si.load(source).run(TOKENS).logits for source in ("inside/tiny.gguf", "link.gguf", "./folder")]
    assert logits[0].equal(logits[1]) and logits[0].equal(logits[2])


@pytest.mark.parametrize(("first", "last"), [(0, 0), (0, 3), (0, 100), (0, -1000), (7, None)])
def test_a_damaged_gguf_file_is_refused_in_one_line(tmp_path, first, last):
    file = write_gguf(tmp_path / "tiny.gguf", tiny_llama())
    file.write_bytes(file.read_bytes()[first:last])
    refused(lambda: si.load(file))


def test_a_flipped_bit_of_a_gguf_file_is_noticed_where_its_hash_lies_beside_it(tmp_path):
    file = write_gguf(tmp_path / "tiny.gguf", tiny_llama())
    seal(tmp_path)
    assert si.load(file).revision.startswith("GGUF")
    content = bytearray(file.read_bytes())
    content[-99] ^= 1
    file.write_bytes(content)
    with pytest.raises(Damaged, match=r"tiny\.gguf is damaged"):
        si.load(file)


def test_without_the_package_gguf_the_fix_is_said(tmp_path, monkeypatch):
    file = write_gguf(tmp_path / "tiny.gguf", tiny_llama())
    monkeypatch.setitem(sys.modules, "gguf", None)
    refused(lambda: si.load(file))


# names


@pytest.fixture
def models(tmp_path, monkeypatch):
    """The folder of the models that have names."""
    monkeypatch.setenv("SINKINTERP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path, models):
    assert cache_folder() == models.parent
    monkeypatch.delenv("SINKINTERP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "sinkinterp"


def test_a_local_name_is_a_model_of_the_cache(models):
    model, folder = saved(models / "tiny"), models / "smollm2-135m-instruct"
    folder.mkdir()
    seal(folder, {"model": folder.name})
    assert located("tiny") == located("local/tiny") == models / "tiny"
    assert located("smollm2") == located("local/smollm2-135m-instruct") == folder
    subject = si.load("local/tiny")
    assert subject.folder == models / "tiny" and subject.name == "local/tiny" and subject.revision == ""
    torch.testing.assert_close(subject.run(TOKENS).logits, bare_logits(model, TOKENS))


@pytest.mark.parametrize("text", ["{}", "[]", "3", "no json", '{"of": "somebody else"}'])
def test_a_source_file_of_somebody_else_says_nothing(tmp_path, text):
    (tmp_path / "SOURCE.json").write_text(text)
    assert origin_of(tmp_path) == ""


def test_a_report_says_where_the_weights_of_a_folder_come_from(models):
    saved(models / "tiny")
    (models / "tiny" / "SOURCE.json").write_text(json.dumps({"from": "GGUF Q4_1 of a package 1.0, dequantised"}))
    for source in ("local/tiny", models / "tiny", str(models / "tiny")):
        assert si.load(source).revision == origin_of(source) == "GGUF Q4_1 of a package 1.0, dequantised"
    assert si.measure(si.load("local/tiny"), TOKENS).protocol.revision == origin_of(models / "tiny")


@pytest.mark.parametrize("name", ["smollm2", "local/nothing", "local/", "local/../models/tiny", "local/.draft-1"])
def test_a_model_that_is_not_there_names_the_command_that_makes_it(models, name):
    saved(models / "tiny")
    (models / ".draft-1").mkdir()
    refused(lambda: si.load(name))


def test_a_folder_in_the_working_directory_comes_first(tmp_path, monkeypatch):
    saved(tmp_path / "local" / "mine")
    monkeypatch.chdir(tmp_path)
    assert located("local/mine") == "local/mine" and si.load("local/mine").name == "local/mine"
