from functools import cache
from types import SimpleNamespace

import pytest
import torch
from backends import test_own_attention, zoo
from backends.zoo import ATTENTION_LAYERS, CONFIGS, VOCAB, model_of, subject_of, tokens_of
from refusals import refused
from torch import nn
from transformers import ProphetNetConfig, ProphetNetForCausalLM
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from sinkinterp.attention import RESIDUAL
from sinkinterp.backends.anatomy import positions_replaced
from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.backends.load import load
from sinkinterp.backends.nnsight import NNsightSubject
from sinkinterp.backends.subject import pads_of
from sinkinterp.interventions import ChangeResidual, Put
from sinkinterp.interventions.changes import ReplacePosition, SwapPositions
from sinkinterp.lm.model import build
from sinkinterp.lm.variants import VARIANTS
from sinkinterp.measurement.measure import measure
from sinkinterp.measurement.parity import dense_patterns
from tools.families import tiny_model

every_model = pytest.mark.parametrize("name", CONFIGS)


measured = cache(lambda name: measure(subject_of(name), tokens_of()))


@every_model
def test_streamed_importance_is_that_of_dense_eager_attention(name):
    patterns, report = dense_patterns(subject_of(name).model, tokens_of()), measured(name)
    assert report.attention_layers == ATTENTION_LAYERS[name]
    assert report.importance.shape == (5, len(ATTENTION_LAYERS[name]), 4, 17)
    torch.testing.assert_close(report.raw_importance, patterns.sum(-2) / patterns.ne(0).sum(-2), rtol=0, atol=1e-6)
    for epsilon in (0.1, 0.3, 0.5):
        want = (report.raw_importance[..., 0] > epsilon).float().mean().item()
        assert report.sink_rate(0, epsilon).mean == pytest.approx(want)
    some = measure(subject_of(name), tokens_of(), positions=(4, 0))
    torch.testing.assert_close(some.importance, report.importance[..., [0, 4]])
    kv_heads = getattr(CONFIGS[name], "num_key_value_heads", 4)  # keys of grouped queries are not counted twice
    assert report.key_norms.shape == report.value_norms.shape == (5, len(ATTENTION_LAYERS[name]), kv_heads, 17)
    assert (report.slot_importance is not None) == (name == "gpt-oss with sink logits")  # learned sink logits alone


@every_model
def test_a_pass_for_reads_alone_reads_the_same_bit_for_bit_and_has_the_last_logits(name):
    subject, reads = subject_of(name), {"mass": lambda call: call.column_mass()}
    whole = subject.run(tokens_of(), reads=reads)
    last = subject.run(tokens_of(), reads=reads, logits=False)
    assert last["mass"].equal(whole["mass"])
    torch.testing.assert_close(last.logits[:, -1], whole.logits[:, -1])
    assert last.logits.shape[1] < whole.logits.shape[1]


@pytest.mark.parametrize("name", [*CONFIGS, *test_own_attention.NAMES])
def test_reads_leave_the_logits_bit_for_bit_and_the_model_as_it_was_even_after_an_error(name):
    computes_itself = name not in CONFIGS
    model, tokens = test_own_attention.model_of(name) if computes_itself else model_of(name), tokens_of()
    bare = zoo.bare_logits(model, tokens)
    before = zoo.everything_of(model.train())
    subject = HuggingFaceSubject(model)
    logits = subject.run(tokens, reads={"mass": lambda call: call.column_mass()}).logits
    torch.testing.assert_close(logits, bare, rtol=0, atol=1e-5 if computes_itself else 0)
    with pytest.raises(ZeroDivisionError):
        subject.run(tokens, reads={"broken": lambda call: 1 / 0})
    if not computes_itself:
        refused(lambda: measure(subject, tokens_of(65)), "65")
    assert zoo.everything_of(model) == before


@pytest.mark.parametrize("edit", [SwapPositions(0, 4), ReplacePosition(0, 4), ReplacePosition(4, 0)], ids=str)
def test_swapped_positions_are_not_taken_for_packed_sequences(edit):
    trace = subject_of("gpt2").run(tokens_of(), reads={"pattern": lambda call: call.pattern()}, edits=[edit])
    assert (trace["pattern"] > 0).eq(torch.ones(17, 17).tril().bool()).all()


@pytest.mark.parametrize("name", ["gpt2", "gemma2 with softcap"])
def test_a_missing_mask_function_is_not_silent(name, monkeypatch):
    model = model_of(name)
    model.set_attn_implementation("eager")
    monkeypatch.delitem(ALL_MASK_ATTENTION_FUNCTIONS._global_mapping, "sinkinterp_eager")
    refused(lambda: HuggingFaceSubject(model))


def test_a_model_outside_the_attention_interface_is_refused_by_name():
    config = ProphetNetConfig(
        vocab_size=VOCAB, hidden_size=48, num_decoder_layers=2, num_decoder_attention_heads=4, decoder_ffn_dim=40,
        is_decoder=True, is_encoder_decoder=False,
    )  # fmt: skip
    refused(lambda: HuggingFaceSubject(ProphetNetForCausalLM(config)), "ProphetNetForCausalLM")


@pytest.mark.parametrize("subject", [HuggingFaceSubject, NNsightSubject])
def test_activations_that_are_not_finite_are_placed(subject):
    model = model_of("llama")
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[3, 3] = torch.inf
    refused(lambda: subject(model))


@pytest.mark.parametrize("backend", ["huggingface", "transformer_lens"])
def test_half_precision_is_measured_in_single_precision(backend):
    report = measure(load(model_of("llama").bfloat16(), backend=backend), tokens_of())
    assert report.importance.dtype == torch.float32 and report.protocol.dtype == "bfloat16"


def test_weights_are_read_in_the_dtype_that_is_asked_for(tmp_path):
    model_of("llama").save_pretrained(tmp_path)
    assert load(tmp_path, dtype="bfloat16").dtype == torch.bfloat16
    assert measure(load(tmp_path, dtype=torch.bfloat16), tokens_of()).protocol.dtype == "bfloat16"
    refused(lambda: load(model_of("gpt2"), dtype="bfloat16"))


def test_a_model_whose_folder_is_gone_has_no_tokenizer(tmp_path):
    model = model_of("llama")
    model.name_or_path = str(tmp_path / "gone")
    assert load(model).tokenizer is None


def test_a_prefix_mask_is_no_mistake_of_the_calls():
    subject = HuggingFaceSubject(build(VARIANTS["prefix_5"]))
    assert subject.run(torch.randint(64, (3, 13)), edits=[SwapPositions(0, 4)]).logits.shape == (3, 13, 64)


@every_model
def test_a_pass_of_some_blocks_reads_and_predicts_what_the_whole_one_does_and_runs_no_other(name):
    subject, tokens = subject_of(name), tokens_of()
    n, first, reads = subject.shape.n_layers, ATTENTION_LAYERS[name][0], {"mass": lambda call: call.column_mass()}
    whole = subject.run(tokens, reads={"x": RESIDUAL.read(lambda x: x.clone()), **reads})
    given = ChangeResidual(Put({n // 2: whole["x"][:, n // 2]}), layers=[n // 2])
    part = subject.run(tokens, reads=reads, edits=given, blocks=range(n // 2, n))
    torch.testing.assert_close(part.logits, whole.logits)
    early = subject.run(tokens, reads=reads, blocks=range(first + 1))["mass"]
    assert early.equal(whole["mass"][:, :1])
    refused(lambda: subject.run(tokens, blocks=1), "range")
    assert part["mass"].shape[1] == sum(layer >= n // 2 for layer in ATTENTION_LAYERS[name])


@pytest.mark.parametrize(
    ("tokenizer", "config", "eos", "pads"),
    [(3, 3, None, {3: 1}), (3, 4, None, {3: 1, 4: 2}), (3, None, 3, {3: 2}), (None, None, 5, {})],
)
def test_padding_is_no_text_once_if_the_tokenizer_says_so_and_twice_else(tokenizer, config, eos, pads):
    reads_text = SimpleNamespace(pad_token_id=tokenizer, eos_token_id=eos)
    model = SimpleNamespace(config=SimpleNamespace(pad_token_id=config))
    assert pads_of(SimpleNamespace(tokenizer=reads_text, model=model)) == pads


def test_a_table_returns_the_rows_of_other_positions_counted_from_its_first():
    table, positions = nn.Embedding(13, 7), torch.tensor([[4, 1, 2, 3, 0]])
    with positions_replaced([table], positions):
        assert table(2 + torch.arange(5)).equal(table.weight[2 + positions])


@pytest.mark.parametrize("name", ["llama", "qwen3 with normed queries", "gemma3", "pythia"])
def test_texts_beyond_the_context_are_read_on_demand_and_the_protocol_says_so(name):
    model, tokens = model_of(name), tokens_of(71)
    refused(lambda: load(model, name="llama").run(tokens), "llama")
    subject = load(model, name="llama", beyond_context=True)
    torch.testing.assert_close(subject.run(tokens).logits, zoo.bare_logits(model, tokens), rtol=0, atol=1e-5)
    assert "its context of 64 tokens is no limit" in measure(subject, tokens).protocol.line()


@pytest.mark.parametrize("model", [model_of("gpt2"), model_of("opt"), tiny_model("gptj")], ids=["gpt2", "opt", "gptj"])
def test_a_model_with_a_table_of_positions_has_none_beyond_its_context(model):
    refused(lambda: load(model, beyond_context=True))
