"""A weights file is read whole or refused: every tensor of it is taken, and every parameter gets one."""

import re
from copy import deepcopy
from functools import partial

import pytest
import torch
from backends.tiny_gguf import tiny_llama, write_gguf
from backends.zoo import CONFIGS, bare_logits, model_of, tokens_of
from lm import family
from refusals import refused
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, PreTrainedModel

from sinkinterp.backends.model_files import load_model

every_model = pytest.mark.parametrize("name", CONFIGS)


def written(folder, weights):
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def saved(model, folder):
    model.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def one_of_each_kind(weights):
    """A name of each kind of tensor: names that differ in numbers alone are of one kind."""
    return {re.sub(r"\.\d+\.", ".N.", name): name for name in weights}.values()


def extras_of(weights, model: PreTrainedModel):
    """Tensors that no parameter of the model takes: of a layer too many, biases, scales, other heads, second names."""
    yield from (re.sub(r"\.\d+\.", ".7.", name, count=1) for name in one_of_each_kind(weights) if ".0." in name)
    maps = [n for n in one_of_each_kind(weights) if n.endswith("weight") and weights[n].ndim == 2]
    yield from (name.removesuffix("weight") + "bias" for name in maps)
    yield from (f"{name}_scale_inv" for name in maps[:2])
    yield from ("score.weight", "v_head.summary.weight")
    prefix = f"{model.base_model_prefix}."
    yield next(name for name in weights if name.startswith(prefix)).removeprefix(prefix)


def by(count, names):
    """Names in groups that one line can tell."""
    names = [*names]
    return (names[i : i + count] for i in range(0, len(names), count))


@every_model
def test_an_extra_tensor_that_no_parameter_takes_is_refused_by_name(name, tmp_path):
    model = model_of(name)
    weights = saved(model, tmp_path)
    prefix = f"{model.base_model_prefix}."
    alike = {name.removeprefix(prefix): x for name, x in weights.items()}
    extras = sorted({*extras_of(weights, model)} - {*weights})
    # transformers gives experts and embed_out other names first
    extras = [extra for extra in extras if ".experts." not in extra and not extra.startswith("embed_out")]
    second = [extra for extra in extras if prefix + extra in weights]  # told where nothing else is too many
    for some in (second, *by(3, (extra for extra in extras if extra not in second))):
        surplus = {extra: torch.full_like(alike.get(extra, torch.ones(3)), 0.5) for extra in some}
        refused(partial(load_model, written(tmp_path, weights | surplus)), "holds ", *some, "which the model")


@every_model
def test_a_tensor_too_few_is_missed(name, tmp_path):
    weights = saved(model_of(name), tmp_path)
    kinds = [*one_of_each_kind(weights)]
    experts = [name for name in kinds if ".experts." in name]  # which are joined in tensors of other names
    for lacking in (*by(2, (name for name in kinds if name not in experts)), *by(1, experts)):
        rest = {other: x for other, x in weights.items() if other not in lacking}
        told = () if lacking[0] in experts else (name.replace("embed_out", "lm_head") for name in lacking)
        refused(partial(load_model, written(tmp_path, rest)), "weights", *told)


@every_model
def test_constants_that_a_model_computes_itself_are_left_out(name, tmp_path):
    model = model_of(name)
    weights = saved(model, tmp_path)
    block = re.match(r".*?\.0\.", next(n for n in weights if ".0." in n))[0]
    constants = {
        f"{block}attn.rotary_emb.inv_freq": torch.ones(6),
        f"{block}attn.masked_bias": torch.tensor(-1e4),
        f"{block}attn.bias": torch.ones(1, 1, 64, 64).tril().bool(),
    }
    constants |= {name: buffer.clone() for name, buffer in model.named_buffers() if name not in weights}
    loaded = load_model(written(tmp_path, weights | constants))
    assert bare_logits(loaded, tokens_of()).equal(bare_logits(model, tokens_of()))


def test_a_head_under_two_names_of_one_parameter_is_refused_by_both(tmp_path):
    weights = saved(model_of("pythia"), tmp_path)
    both = weights | {"lm_head.weight": weights["embed_out.weight"] + 1}
    refused(lambda: load_model(written(tmp_path, both)))
    for name in ("embed_out.weight", "lm_head.weight"):
        one = {key: x for key, x in both.items() if key not in ("embed_out.weight", "lm_head.weight")}
        head = load_model(written(tmp_path, one | {name: both[name]})).get_output_embeddings().weight
        assert head.equal(both[name])


@pytest.mark.parametrize(
    ("theirs", "ours"), [("llama with biases", "llama with grouped queries"), ("qwen2", "llama with grouped queries")]
)
def test_weights_under_another_configuration_are_refused_and_the_fix_that_is_named_is_right(theirs, ours, tmp_path):
    model = model_of(theirs)
    model.save_pretrained(tmp_path)
    deepcopy(CONFIGS[ours]).save_pretrained(tmp_path)
    refused(lambda: load_model(tmp_path))
    model.config.save_pretrained(tmp_path)
    assert bare_logits(load_model(tmp_path), tokens_of()).equal(bare_logits(model, tokens_of()))


def multi_token(tmp_path):
    """A DeepSeek whose file also holds a layer that predicts the token after the next."""
    model = model_of("deepseek-v3 with wide values")
    weights = saved(model, tmp_path)
    layer = {name.replace("layers.2.", "layers.3."): x + 1 for name, x in weights.items() if "layers.2." in name}
    return model, weights, layer


def test_layers_that_predict_later_tokens_are_left_out(tmp_path):
    model, weights, layer = multi_token(tmp_path)
    own = {"eh_proj": torch.ones(48, 96), "enorm": torch.ones(48), "shared_head.head": torch.ones(97, 48)}
    layer |= {f"model.layers.3.{name}.weight": x for name, x in own.items()}
    loaded = load_model(written(tmp_path, weights | layer))
    assert bare_logits(loaded, tokens_of()).equal(bare_logits(model, tokens_of()))
    config = AutoConfig.from_pretrained(tmp_path)
    config.num_nextn_predict_layers = config.num_mtp_layers = 0
    config.save_pretrained(tmp_path)
    refused(lambda: load_model(tmp_path))


def test_an_ordinary_layer_too_many_is_refused_where_later_tokens_are_predicted(tmp_path):
    _, weights, layer = multi_token(tmp_path)
    refused(lambda: load_model(written(tmp_path, weights | layer)))


@pytest.mark.parametrize("name", ["k_bias", "gated_elements"])
def test_a_model_of_our_family_is_read_whole_or_refused(name, tmp_path):
    weights = saved(family.model_of(name), tmp_path)
    load_model(tmp_path)
    for known in by(3, one_of_each_kind(weights)):
        surplus = {f"{name}_scale": torch.ones(3) for name in known}
        refused(partial(load_model, written(tmp_path, weights | surplus)), *surplus, "which the model does not take")
        rest = {other: x for other, x in weights.items() if other not in known}
        refused(partial(load_model, written(tmp_path, rest)), "no fitting weights for", *known)


def test_a_sharded_model_is_read_whole_or_refused(tmp_path):
    model = model_of("llama")
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    files = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(files) > 3
    assert bare_logits(load_model(tmp_path), tokens_of()).equal(bare_logits(model, tokens_of()))
    second = load_file(files[1])
    save_file(second | {"model.layers.0.self_attn.q_proj.bias": torch.ones(48)}, files[1], {"format": "pt"})
    refused(lambda: load_model(tmp_path))
    save_file(dict([*second.items()][1:]), files[1], {"format": "pt"})
    refused(lambda: load_model(tmp_path))
    save_file(second, files[1], {"format": "pt"})
    save_file(second, tmp_path / "model-00099-of-00099.safetensors", {"format": "pt"})
    refused(lambda: load_model(tmp_path))


def test_an_adapter_that_was_not_merged_is_refused_with_how_to_merge_it(tmp_path):
    weights = saved(model_of("llama"), tmp_path)
    at = "model.layers.0.self_attn.q_proj"
    weights[f"{at}.base_layer.weight"] = weights.pop(f"{at}.weight")
    lora = {f"{at}.lora_A.default.weight": torch.ones(2, 48), f"{at}.lora_B.default.weight": torch.ones(48, 2)}
    refused(lambda: load_model(written(tmp_path, weights | lora)))
    (tmp_path / "adapter_config.json").write_text("{}")
    refused(lambda: load_model(tmp_path))


@pytest.mark.parametrize("extra", ["blk.0.attn_q.bias", "blk.7.attn_norm.weight", "rope_freqs.weight", "output.bias"])
def test_a_tensor_of_a_gguf_file_that_no_parameter_takes_is_refused_by_name(extra, tmp_path):
    file = write_gguf(tmp_path / "tiny.gguf", tiny_llama(), more={extra: torch.full((32,), 3.0)})
    refused(lambda: load_model(file), f"holds {extra}, which the model does not take")
