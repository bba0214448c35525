"""A folder of an adapter is read with the model that it names."""

import json
from functools import partial

import pytest
import torch
from refusals import refused
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

import sinkinterp as si


@pytest.fixture
def base(tmp_path):
    sizes = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
    LlamaForCausalLM(LlamaConfig(vocab_size=53, **sizes)).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def adapter_of(folder, **config):
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def test_an_adapter_says_what_it_needs(base, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    refused(lambda: si.load(adapter_of(tmp_path / "a", base_model_name_or_path=str(base))))
    for name, config in {"b": {}, "c": {"base_model_name_or_path": None}, "d": {"base_model_name_or_path": 5}}.items():
        refused(partial(si.load, adapter_of(tmp_path / name, **config)))
    refused(lambda: si.load(adapter_of(tmp_path / "e", base_model_name_or_path=str(tmp_path / "a"))))


@pytest.fixture
def adapted(base, tmp_path):
    """A model that peft adapted, which is saved in the folder `adapter`."""
    peft = pytest.importorskip("peft", reason="needs peft: pip install 'sinkinterp[peft]'")
    config = peft.LoraConfig(r=3, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = peft.get_peft_model(LlamaForCausalLM.from_pretrained(base), config).eval()
    model.save_pretrained(tmp_path / "adapter")
    return model


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of peft, about transformers
def test_an_adapter_is_read_as_peft_runs_it(adapted, base, tmp_path):
    ids = torch.randint(53, (2, 7))
    expected, plain = (model(ids).logits for model in (adapted, LlamaForCausalLM.from_pretrained(base)))
    logits = si.load(tmp_path / "adapter").run(ids).logits
    torch.testing.assert_close(logits, expected)
    assert (logits - plain).abs().max() > 0.1


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:Found missing adapter keys")  # of peft
def test_an_adapter_is_read_whole_or_refused(adapted, tmp_path):
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    weights = load_file(file)
    first = min(weights)
    damaged = {
        f"it lacks {first}": {name: x for name, x in weights.items() if name != first},
        "it lacks ": {name.replace("layers.1", "layers.7"): x for name, x in weights.items()},
        "no part takes base_model.model.extra": weights | {"base_model.model.extra": torch.ones(3)},
    }
    for words, tensors in damaged.items():
        save_file(tensors, file)
        refused(lambda: si.load(tmp_path / "adapter"), "does not fit", words)
