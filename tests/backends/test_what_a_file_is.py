"""A file or a folder is looked at before a model is built, and what is there is said."""

import json
from types import SimpleNamespace

import gguf
import pytest
import torch
import transformers
from backends.tiny_gguf import tiny_llama, write_gguf
from backends.zoo import model_of
from refusals import refused
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

import sinkinterp as si
from sinkinterp.backends import weights

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
    with torch.no_grad():
        right = model(TOKENS).logits
    torch.testing.assert_close(subject.run(TOKENS).logits, right, rtol=0, atol=1e-5)
    assert subject.model.config.rope_parameters["factor"] == pytest.approx(factor)
    other = write_gguf(tmp_path / "other.gguf", model, more={"rope_freqs.weight": 0 * factors + 3})
    refused(lambda: si.load(other), "holds rope_freqs.weight")


def test_a_gguf_file_that_holds_more_or_less_than_a_model_is_refused(tmp_path):
    more = write_gguf(tmp_path / "more.gguf", tiny_llama(), more={"rope_freqs.weight": 3 * torch.ones(4)})
    refused(lambda: si.load(more), "holds rope_freqs.weight")


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


def test_a_part_that_is_absent_is_named(tmp_path):
    tiny_llama().save_pretrained(tmp_path, max_shard_size="20KB")
    part = sorted(tmp_path.glob("model-*"))[1]
    kept = part.read_bytes()
    part.unlink()
    refused(lambda: si.load(tmp_path), part.name)
    part.write_bytes(kept)
    si.load(tmp_path)


def test_a_folder_of_another_class_than_transformers_makes_of_it_is_refused(tmp_path):
    config = transformers.GPT2Config(vocab_size=37, n_embd=16, n_layer=2, n_head=2, n_positions=32)
    transformers.GPT2DoubleHeadsModel(config).save_pretrained(tmp_path)
    refused(lambda: si.load(tmp_path), "multiple_choice_head", "which the model does not take")


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
