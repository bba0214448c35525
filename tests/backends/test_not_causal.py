"""A model that is not a causal language model is refused before it runs, and what the message says is done."""

import re

import plotly.graph_objects as go
import pytest
import torch
import transformers
from refusals import refused
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import sinkinterp as si
from sinkinterp.backends.model_files import check_causal

TOKENS = torch.randint(37, (2, 11), generator=torch.Generator().manual_seed(0))
SIZES = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24}
LLAMA = LlamaConfig(vocab_size=37, max_position_embeddings=19, initializer_range=0.4, pad_token_id=0, **SIZES)
IMAGE = {"image_size": 16, "patch_size": 8, **SIZES}
NOT_CAUSAL = {
    "ViTModel": transformers.ViTConfig(**IMAGE),
    "ViTForImageClassification": transformers.ViTConfig(**IMAGE),
    "Dinov2Model": transformers.Dinov2Config(**{k: IMAGE[k] for k in IMAGE if k != "intermediate_size"}),
    "BertModel": transformers.BertConfig(vocab_size=37, **SIZES),
    "BertForMaskedLM": transformers.BertConfig(vocab_size=37, **SIZES),
    "BertLMHeadModel": transformers.BertConfig(vocab_size=37, **SIZES),
    "RobertaForSequenceClassification": transformers.RobertaConfig(vocab_size=37, **SIZES),
    "DistilBertModel": transformers.DistilBertConfig(vocab_size=37, dim=16, n_layers=2, n_heads=2, hidden_dim=24),
    **dict.fromkeys(  # as EmbeddingGemma is published
        ("Gemma3TextModel", "Gemma3ForCausalLM"),
        transformers.Gemma3TextConfig(
            vocab_size=37, num_key_value_heads=1, head_dim=8, use_bidirectional_attention=True, **SIZES
        ),
    ),
}


def made(name, config=LLAMA, implementation="eager"):
    torch.manual_seed(0)
    return getattr(transformers, name)._from_config(config, attn_implementation=implementation).eval()


def alpha(model, tokens=TOKENS, **loading):
    return si.measure(si.load(model, **loading), tokens).alpha()


@pytest.fixture
def llama(tmp_path):
    made("LlamaForCausalLM").save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


@pytest.mark.parametrize("in_folder", [False, True])
@pytest.mark.parametrize("name", NOT_CAUSAL)
def test_a_model_that_is_not_causal_is_refused_before_a_pass_and_its_maps_are_drawn(name, in_folder, tmp_path):
    model = made(name, NOT_CAUSAL[name])
    model.save_pretrained(tmp_path)
    ran = model.register_forward_pre_hook(lambda *given: pytest.fail("it ran"))
    message = refused(lambda: si.load(tmp_path if in_folder else model), name, "not a causal language model")
    ran.remove()
    assert "si.attention_map(model(..., output_attentions=True).attentions)" in message and "='eager'" in message
    given = torch.randn(2, 3, 16, 16) if model.main_input_name == "pixel_values" else TOKENS
    assert isinstance(si.attention_map(model(given, output_attentions=True).attentions), go.Figure)


@pytest.mark.parametrize("name", ["ParakeetForCTC", "LasrForCTC", "GraniteSpeech5ForCTC"])
def test_a_model_that_generates_from_sound_without_a_decoder_is_not_causal(name):
    kind = getattr(transformers, name)
    refused(lambda: check_causal(kind, kind.config_class(), name), "not a causal language model")


@pytest.mark.parametrize("in_folder", [False, True])
@pytest.mark.parametrize("name", ["LlamaModel", "LlamaForSequenceClassification", "LlamaForTokenClassification"])
def test_a_model_without_a_head_is_loaded_with_it_or_its_attention_is_measured(name, in_folder, llama, tmp_path):
    causal = LlamaForCausalLM.from_pretrained(llama)
    model = getattr(transformers, name).from_pretrained(llama, attn_implementation="eager").eval()
    model.save_pretrained(tmp_path / "other")
    message = refused(lambda: si.load(tmp_path / "other" if in_folder else model), "does not predict tokens")
    named = re.search(r"load it as (\w+), or measure its attention alone: si.sinks\(", message)[1]
    torch.testing.assert_close(alpha(getattr(transformers, named).from_pretrained(llama)), alpha(causal))
    shown = si.sinks(model(TOKENS, output_attentions=True).attentions).frame["alpha_1"].iloc[1:].tolist()
    assert shown == pytest.approx(alpha(causal).mean(0).flatten().tolist(), abs=1e-5)


class PrefixTuned(nn.Module):
    """As peft tunes prefixes: every layer has keys and values that are no tokens."""

    def __init__(self, base_model):
        super().__init__()
        self.base_model = base_model

    def forward(self, input_ids):
        cache, config = transformers.DynamicCache(), self.base_model.config
        for layer in range(config.num_hidden_layers):
            torch.manual_seed(layer)
            cache.update(*torch.randn(2, len(input_ids), config.num_key_value_heads, 3, config.head_dim), layer)
        return self.base_model(input_ids, past_key_values=cache)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_model_with_tuned_prefixes_is_refused(implementation):
    refused(lambda: si.load(PrefixTuned(made("LlamaForCausalLM", implementation=implementation))))


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of peft, about transformers
@pytest.mark.parametrize("kind", ["PrefixTuningConfig", "PromptTuningConfig"])
def test_adapters_of_prefixes_are_refused_by_name_in_memory_and_in_folders(kind, llama, tmp_path):
    peft = pytest.importorskip("peft", reason="needs peft: pip install 'sinkinterp[peft]'")
    config = getattr(peft, kind)(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model = peft.get_peft_model(LlamaForCausalLM.from_pretrained(llama), config).eval()
    refused(lambda: si.load(model))
    model.save_pretrained(tmp_path / "adapter")
    refused(lambda: si.load(tmp_path / "adapter"), "no tokens of a text")
