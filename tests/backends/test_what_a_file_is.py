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
from sinkinterp.backends.files import model_files

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


def test_a_folder_that_is_not_a_model_of_transformers_says_what_is_in_it(tmp_path):
    model = tiny_llama()

    def folder(name):
        (tmp_path / name).mkdir()
        return tmp_path / name

    of_gguf = folder("gguf")
    write_gguf(of_gguf / "tiny.gguf", model)
    refused(lambda: si.load(of_gguf), "give the GGUF file itself", "tiny.gguf")
    si.load(of_gguf / "tiny.gguf")  # the fix
    pickled = folder("pickled")
    torch.save(model.state_dict(), pickled / "ckpt.pt")
    refused(lambda: si.load(pickled), "ckpt.pt", "torch.load")
    made = tiny_llama()
    made.load_state_dict(torch.load(pickled / "ckpt.pt"))
    si.load(made)  # the fix
    of_trainer = folder("trainer")
    for step in (500, 1000):
        model.save_pretrained(of_trainer / f"checkpoint-{step}")
    refused(lambda: si.load(of_trainer), "checkpoint-1000")
    si.load(of_trainer / "checkpoint-1000")  # the fix
    of_hub = folder("models--me--tiny")
    model.save_pretrained(of_hub / "snapshots" / "abc")
    refused(lambda: si.load(of_hub), f"{of_hub / 'snapshots' / 'abc'}")
    of_diffusers = folder("diffusers")
    (of_diffusers / "unet").mkdir()
    (of_diffusers / "unet" / "config.json").write_text("{}")
    for empty in (of_diffusers, folder("empty")):
        refused(lambda empty=empty: si.load(empty), "holds no config.json", "save_pretrained")


def test_a_folder_without_safetensors_says_which_weights_are_there(tmp_path):
    model = saved(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    refused(lambda: si.load(tmp_path), "save_pretrained")
    torch.save(model.state_dict(), tmp_path / "model_final.pth")
    refused(lambda: si.load(tmp_path), "model_final.pth", "torch.load")
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "model_final.pth").unlink()
    refused(lambda: si.load(tmp_path), "pytorch_model.bin: load and save the model with transformers once")
    LlamaForCausalLM.from_pretrained(tmp_path).save_pretrained(tmp_path)
    si.load(tmp_path)  # the fix


def test_a_file_is_gguf_by_its_first_bytes_and_others_say_what_to_give(tmp_path):
    saved(tmp_path)
    for name in ("A.GGUF", "sha256-0123"):
        si.load(write_gguf(tmp_path / "tiny.gguf", tiny_llama()).rename(tmp_path / name))
    for name in ("config.json", "model.safetensors"):
        refused(lambda name=name: si.load(tmp_path / name), f"give its folder, {tmp_path}")
    si.load(tmp_path)  # the fix
    torch.save({}, tmp_path / "ckpt.pt")
    refused(lambda: si.load(tmp_path / "ckpt.pt"), "torch.load")
    weights = tmp_path / "alone" / "weights.safetensors"
    weights.parent.mkdir()
    (tmp_path / "model.safetensors").rename(weights)
    refused(lambda: si.load(weights), "give the name or the folder of a model")
    refused(lambda: si.load(weights.parent), "put the config.json of weights.safetensors there")
    (tmp_path / "config.json").rename(weights.parent / "config.json")
    weights.rename(weights.with_name("model.safetensors"))
    si.load(weights.parent)  # the fix


def test_a_part_of_a_split_gguf_file_is_refused(tmp_path):
    part = write_gguf(tmp_path / "part.gguf", tiny_llama(), more={"split.count": 2})
    refused(lambda: si.load(part), "split into 2 files")


def test_an_adapter_whose_base_is_not_here_is_said_to_be_one(tmp_path):
    config = {"peft_type": "LORA", "base_model_name_or_path": str(tmp_path / "away" / "llama")}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    refused(lambda: si.load(tmp_path), "is an adapter of a model that is not here", "away")


@pytest.mark.parametrize("method", ["gptq", "awq", "hqq", "exl2", None])
def test_a_folder_of_quantised_weights_names_the_method_or_the_package_and_gives_no_other_fix(method, tmp_path):
    weights = saved(tmp_path, quantization_config={"quant_method": method, "bits": 4} if method else {"bits": 4})
    weights = {name: x.contiguous() for name, x in weights.state_dict().items()}
    weights["model.layers.0.mlp.up_proj.q_weight"] = weights.pop("model.layers.0.mlp.up_proj.weight").int()
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    message = refused(
        lambda: si.load(tmp_path), "" if method is None else method.upper() if method != "exl2" else method
    )
    assert "save_pretrained" not in message and "no fitting weights" not in message
    assert ("take the model that was quantised" in message) == (method in ("exl2", None))


@pytest.mark.parametrize(("who", "names", "more"), [
    ("GPTQ", ("qweight", "qzeros", "scales", "g_idx"), {}),
    ("GPTQ or AWQ", ("qweight", "qzeros", "scales"), {}),
    ("MLX", ("weight", "scales", "biases"), {"quantization": {"group_size": 64, "bits": 4}}),
    ("MLX", ("weight", "scales", "biases"), {"quantization_config": {"group_size": 64, "bits": 4}}),
])  # fmt: skip
def test_quantised_weights_are_named_by_what_quantised_them(who, names, more, tmp_path):
    weights = {name: x.contiguous() for name, x in saved(tmp_path, **more).state_dict().items()}
    place = "model.layers.0.mlp.up_proj"
    del weights[f"{place}.weight"]
    for name in names:
        packed = name in ("qweight", "qzeros", "g_idx", "weight")
        weights[f"{place}.{name}"] = torch.ones(4, 4, dtype=torch.int32 if packed else torch.float16)
    if who == "MLX":
        weights[f"{place}.weight"] = weights[f"{place}.weight"].view(torch.uint32)
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    assert "F32" not in refused(lambda: si.load(tmp_path), f"weights that {who} quantised")


FOREIGN = {
    "tf_model.h5": "TensorFlow", "flax_model.msgpack": "Flax", "weights.npz": "MLX", "model.onnx": "ONNX",
    "onnx/model.onnx": "ONNX", "__0_0.distcp": "distributed checkpoints", "consolidated.00.pth": "Meta or Mistral",
    "consolidated.safetensors": "Meta or Mistral", "global_step7/mp_rank_00_model_states.pt": "DeepSpeed",
    "ggml-model-q4_0.bin": "GGML",
}  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
def test_weights_of_other_programs_are_called_by_their_name(name, tmp_path):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"PK\x03\x04" + bytes(60))
    for source in (tmp_path, *[file] * (file.parent == tmp_path)):
        message = refused(lambda source=source: si.load(source), f"{name} holds weights of", FOREIGN[name])
        assert "torch.load" not in message and "config.json of" not in message
    saved(tmp_path)
    si.load(tmp_path)  # the fix: the model's own weights, as safetensors
    if file.parent == tmp_path:
        refused(lambda: si.load(file), f"give its folder, {tmp_path}")


@pytest.mark.parametrize(
    "name", ["optimizer.pt", "rng_state_0.pth", "training_args.bin", "model.bin", "m.zip", "w.ckpt"]
)
def test_what_is_no_weight_of_torch_is_not_said_to_be_loaded_with_it(name, tmp_path):
    (tmp_path / name).write_bytes(b"PK\x03\x04" if name[0] in "ort" else b"no zip")
    for source in (tmp_path, tmp_path / name):
        assert "torch.load" not in refused(lambda source=source: si.load(source))


def test_a_pointer_of_git_lfs_and_a_part_that_is_absent_are_named(tmp_path):
    saved(tmp_path / "whole")
    tiny_llama().save_pretrained(tmp_path / "parts", max_shard_size="20KB")
    si.load(tmp_path / "parts")
    parts = sorted((tmp_path / "parts").glob("model-*"))
    kept = parts[1].read_bytes()
    parts[1].unlink()
    refused(lambda: si.load(tmp_path / "parts"), f"{parts[1].name} is not in", "copy the folder again")
    parts[1].write_bytes(kept)
    si.load(tmp_path / "parts")  # the fix
    (tmp_path / "whole" / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    refused(lambda: si.load(tmp_path / "whole"), "is a pointer of Git LFS", "git lfs pull")


@pytest.mark.parametrize("mark", ["module.", "_orig_mod."])
def test_the_tensors_of_a_wrapped_model_say_what_to_save(mark, tmp_path):
    model = saved(tmp_path)
    wrapped = torch.nn.DataParallel(model) if mark == "module." else torch.compile(model, backend="eager")
    tensors = {name: x.clone() for name, x in wrapped.state_dict().items()}
    assert all(name.startswith(mark) for name in tensors)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    assert f"model.{mark}save_pretrained(FOLDER)" in refused(lambda: si.load(tmp_path))
    getattr(wrapped, mark.removesuffix(".")).save_pretrained(tmp_path)  # the fix
    si.load(tmp_path)


def test_a_folder_of_another_class_than_transformers_makes_of_it_says_which(tmp_path):
    config = transformers.GPT2Config(vocab_size=37, n_embd=16, n_layer=2, n_head=2, n_positions=32)
    transformers.GPT2DoubleHeadsModel(config).save_pretrained(tmp_path)
    refused(lambda: si.load(tmp_path), "load it with GPT2DoubleHeadsModel.from_pretrained, and give the model itself")
    si.measure(transformers.GPT2DoubleHeadsModel.from_pretrained(tmp_path), TOKENS, progress=False)  # the fix


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
    monkeypatch.setattr(model_files, "transformers", SimpleNamespace(__version__="5.2.0"))
    refused(lambda: si.load(file), "5.2.0 does not read")
    monkeypatch.delattr("transformer_lens.model_bridge.sources.build_bridge_from_module")
    refused(lambda: si.load(model_of("gpt2"), backend="transformer_lens"), "use 4.3 or newer")
