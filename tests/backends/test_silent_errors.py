"""Edits that changed nothing, or something else, without a word: each is done right now, or refused in one line."""

from functools import partial

import pytest
import torch
from backends.own_modules import NanoGPT
from backends.zoo import SIZES, bare_logits, model_of, peaked, subject_of, tokens_of
from refusals import refused
from torch.ao.quantization import default_dynamic_qconfig, quantize_dynamic
from transformers import AutoModelForCausalLM, OPTConfig, RecurrentGemmaConfig, XLMRobertaConfig

import sinkinterp as si
from sinkinterp import interventions as iv
from sinkinterp.attention import sites
from sinkinterp.attention.kernels import Sigmoid
from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.backends.load import BACKENDS
from sinkinterp.interventions.attention_layers import BlindKeys
from sinkinterp.measurement.parity import dense_patterns
from sinkinterp.metrics.instruments import ALL
from sinkinterp.report.summary import sink_summary

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor"),
]

OPT_350M = OPTConfig(**SIZES, ffn_dim=40, word_embed_proj_dim=24, do_layer_norm_before=False)


def test_positions_that_also_reset_a_recurrence_are_refused():
    config = RecurrentGemmaConfig(**SIZES, num_key_value_heads=1, lru_width=48, attention_window_size=32)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(8 if "linear_" in name else 1)  # what a block writes is seen
    subject = HuggingFaceSubject(model)
    refused(lambda: si.measure(subject, tokens_of(), edits=[iv.SwapPositions(0, 4)]))


def test_positions_that_count_from_another_number_are_refused():
    config = XLMRobertaConfig(**SIZES, is_decoder=True)
    config.pad_token_id = 1
    subject = HuggingFaceSubject(peaked(AutoModelForCausalLM.from_config(config).eval()))
    refused(lambda: si.measure(subject, tokens_of(), edits=[iv.SwapPositions(0, 4)]), "0")


@pytest.mark.parametrize("edit", [iv.RemoveColumn(), iv.PatchNormalization(Sigmoid(), heads=[(1, 2)])], ids=str)
def test_every_instrument_measures_a_pattern_that_was_set(edit):
    subject = subject_of("llama")
    report = si.measure(subject, tokens_of(), edits=[edit], instruments=ALL)
    assert all(value.isfinite().any() for value in report.extras.values())


def test_widths_are_those_of_blocks_embeddings_and_values():
    subject = HuggingFaceSubject(peaked(AutoModelForCausalLM.from_config(OPT_350M).eval()))
    assert (subject.shape.d_model, subject.shape.d_embedding) == (48, 24)
    plain = subject.run(tokens_of()).logits
    assert not subject.run(tokens_of(), edits=[BlindKeys([40])]).logits.equal(plain)
    refused(lambda: subject.run(tokens_of(), edits=[iv.Change(sites.TOKEN_EMBEDDING, iv.Zero(), dims=[24])]), "24")


def test_values_may_be_wider_than_queries():
    subject = HuggingFaceSubject(model_of("deepseek-v3 with wide values"))
    assert (subject.shape.d_head, subject.shape.d_value) == (12, 20)
    plain = subject.run(tokens_of()).logits
    for change in (iv.ChangeValues, iv.ChangeOutputs):
        assert not subject.run(tokens_of(), edits=[change(iv.Zero(), dims=[18])]).logits.equal(plain)
        refused(partial(subject.run, tokens_of(), edits=[change(iv.Zero(), dims=[20])]), "20")


def test_the_divisor_is_named_where_a_window_is_narrower_than_the_text():
    for name, is_named in (("mistral with a window", True), ("llama", False)):
        note = sink_summary(si.measure(subject_of(name), tokens_of())).note
        assert ("the paper divides by T - k + 1" in note) is is_named


def test_a_double_precision_model_keeps_its_logits():
    model = model_of("gpt2").double()
    subject = HuggingFaceSubject(model)
    torch.testing.assert_close(subject.run(tokens_of()).logits, bare_logits(model, tokens_of()), rtol=0, atol=1e-12)
    assert si.measure(subject, tokens_of()).sink_rate().mean >= 0


def rounded(model, part="", dtype=torch.qint8):
    """The model with its linear layers rounded, those whose names hold `part`."""
    linear = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear) and part in name]
    return quantize_dynamic(model, dict.fromkeys(linear, default_dynamic_qconfig) if part else None, dtype=dtype)


NAMES = ("gpt2", "qwen2", "gemma2 with softcap", "gpt-oss with sink logits")
ROUNDED = {
    **{name: lambda name=name: si.load(rounded(model_of(name))) for name in NAMES},
    **{part: lambda part=part: si.load(rounded(model_of("llama"), part)) for part in ("k_proj", "mlp", "lm_head")},
    **{name: lambda name=name: si.load(rounded(model_of("llama")), backend=name) for name in BACKENDS},
    "a module of one's own": lambda: si.load(rounded(NanoGPT().eval())),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_a_model_that_rounds_all_texts_by_one_scale_is_refused(name):
    refused(ROUNDED[name])


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen2"])
def test_weights_alone_may_be_rounded(name):
    model = rounded(model_of(name), dtype=torch.float16)
    assert isinstance(model.lm_head.weight(), torch.Tensor)  # packed: no parameter
    right = dense_patterns(model, tokens_of())
    seen = torch.arange(right.shape[-1], 0, -1)
    importance = si.measure(model, tokens_of(), progress=False).importance
    torch.testing.assert_close(importance, right.sum(-2) / seen, rtol=0, atol=1e-5)
