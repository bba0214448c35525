"""Families whose attention modules compute attention themselves, beside transformers' own eager patterns."""

import copy
from dataclasses import dataclass
from functools import cache

import pytest
import torch
import transformers
from backends.zoo import VOCAB, bare_logits, is_untouched, peaked, state_of, tokens_of
from refusals import refused

from sinkinterp.attention.sites import MLP, RESIDUAL, Edit
from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.backends.load import load
from sinkinterp.backends.patched import patched
from sinkinterp.checks import InputError
from sinkinterp.interventions.attention_layers import BlindKeys, RemoveColumn
from sinkinterp.interventions.positions import SwapPositions
from sinkinterp.measurement.measure import measure

GPTJ = {"vocab_size": VOCAB, "n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 64, "rotary_dim": 4}
FALCON = {"vocab_size": VOCAB, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
CONFIGS = {
    "bloom": transformers.BloomConfig(vocab_size=VOCAB, hidden_size=48, n_layer=3, n_head=4),
    "codegen": transformers.CodeGenConfig(**GPTJ, n_ctx=64),
    "diffllama": transformers.DiffLlamaConfig(**FALCON, num_key_value_heads=2, intermediate_size=40),
    "falcon with alibi": transformers.FalconConfig(
        **FALCON, alibi=True, multi_query=False, new_decoder_architecture=False, parallel_attn=False, bias=True,
        attn_implementation="eager",
    ),
    "falcon with one kv head": transformers.FalconConfig(**FALCON, multi_query=True),
    "falcon with two kv heads": transformers.FalconConfig(**FALCON, num_kv_heads=2, new_decoder_architecture=True),
    "gpt-j": transformers.GPTJConfig(**GPTJ),
    "gpt-neo": transformers.GPTNeoConfig(
        vocab_size=VOCAB, hidden_size=48, num_layers=4, attention_types=[[["global", "local"], 2]], num_heads=4,
        window_size=5, max_position_embeddings=64, intermediate_size=40,
    ),
    "gpt-neox-japanese": transformers.GPTNeoXJapaneseConfig(**FALCON, intermediate_multiple_size=1),
    "mvp": transformers.MvpConfig(
        vocab_size=VOCAB, d_model=48, decoder_layers=3, decoder_attention_heads=4, decoder_ffn_dim=40, encoder_layers=3,
        max_position_embeddings=64, is_decoder=True, is_encoder_decoder=False,
    ),
    "openai-gpt": transformers.OpenAIGPTConfig(vocab_size=VOCAB, n_embd=48, n_layer=3, n_head=4, n_positions=64),
    "mpt": transformers.MptConfig(vocab_size=VOCAB, d_model=48, n_layers=3, n_heads=4, max_seq_len=64),
    "roformer with rotated values": transformers.RoFormerConfig(
        **FALCON, intermediate_size=40, max_position_embeddings=64, is_decoder=True, rotary_value=True
    ),
    "xglm": transformers.XGLMConfig(
        vocab_size=VOCAB, d_model=48, num_layers=3, attention_heads=4, ffn_dim=40, max_position_embeddings=64
    ),
}  # fmt: skip
KV_HEADS = dict.fromkeys(CONFIGS, 4) | {"falcon with one kv head": 1, "falcon with two kv heads": 2, "diffllama": 2}
WITH_ALIBI = {"bloom", "mpt", "falcon with alibi"}
SHARP = ("q_proj", "k_proj", "query_key_value", "qkv", "c_attn", "wpe")
OTHER_NAMES = ("diffllama", "gpt-neox-japanese", "mvp", "roformer with rotated values")  # their parts have
every_family = pytest.mark.parametrize("name", CONFIGS)
most_families = pytest.mark.parametrize("name", [name for name in CONFIGS if name not in OTHER_NAMES])


def model_of(name):
    torch.manual_seed(0)
    return peaked(transformers.AutoModelForCausalLM.from_config(CONFIGS[name]).eval(), SHARP)


subject_of = cache(lambda name: HuggingFaceSubject(model_of(name)))
measured = cache(lambda name: measure(subject_of(name), tokens_of()))


@torch.no_grad()
def dense_patterns(model, tokens):
    eager = copy.deepcopy(model)
    eager.config._attn_implementation = "eager"
    return torch.stack(eager(tokens, output_attentions=True, use_cache=False).attentions, 1)


@dataclass(frozen=True)
class NoAttention(Edit):
    """Zeroes what all heads return."""

    def output(self, call, z):
        return torch.zeros_like(z)


@every_family
def test_importance_is_that_of_dense_eager_attention(name):
    patterns, report = dense_patterns(subject_of(name).model, tokens_of()), measured(name)
    want = patterns.sum(-2) / patterns.ne(0).sum(-2)
    torch.testing.assert_close(report.raw_importance, want, rtol=0, atol=1e-5)
    assert report.key_norms.shape[2] == KV_HEADS[name]


@every_family
def test_reads_leave_the_logits_and_the_model_as_they_were_even_after_an_error(name):
    subject, tokens = subject_of(name), tokens_of()
    model, before = subject.model, subject.model.config._attn_implementation
    bare, state = bare_logits(model, tokens), state_of(model)
    logits = subject.run(tokens, reads={"mass": lambda call: call.column_mass()}).logits
    torch.testing.assert_close(logits, bare, rtol=0, atol=1e-5)
    with pytest.raises(ZeroDivisionError):
        subject.run(tokens, reads={"broken": lambda call: 1 / 0})
    assert model.config._attn_implementation == before and is_untouched(model, state)
    assert not any("forward" in vars(module) for module in model.modules())


@every_family
def test_only_alibi_is_a_bias_of_the_scores(name):
    biased = {"biased": lambda call: torch.full(call.q.shape[:1], call.bias is not None)}
    assert subject_of(name).run(tokens_of(), reads=biased)["biased"].eq(name in WITH_ALIBI).all()


@most_families
def test_an_edit_of_every_head_output_reaches_the_logits_as_in_the_module(name):
    model, tokens = model_of(name), tokens_of()
    edited = HuggingFaceSubject(model).run(tokens, edits=[NoAttention()]).logits
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith(("out_proj.weight", "self_attention.dense.weight", "attn.c_proj.weight")):
                parameter.zero_()
    torch.testing.assert_close(edited, bare_logits(model, tokens), rtol=0, atol=1e-5)


@most_families
def test_feed_forward_updates_and_attention_make_up_the_residual(name):
    subject = subject_of(name)
    model = subject.model
    if name == "openai-gpt":  # a norm follows the sum
        assert subject.shape.mlp_layers == ()
        return
    reads = {"x": RESIDUAL.read(lambda x: x), "mlp": MLP.read(lambda x: x)}
    trace = subject.run(tokens_of(), reads=reads, edits=[NoAttention()])
    steps = trace["x"].diff(dim=1)
    bias = [p for n, p in model.named_parameters() if n.endswith(("out_proj.bias", "self_attention.dense.bias"))]
    want = trace["mlp"] if not bias else trace["mlp"] + torch.stack(bias)[None, :, None]
    torch.testing.assert_close(steps, want, rtol=0, atol=1e-4)


@every_family
def test_positions_are_swapped_or_refused(name):
    subject = subject_of(name)
    if name in (*WITH_ALIBI, "mvp", "roformer with rotated values"):  # the last two take no position ids
        refused(lambda: measure(subject, tokens_of(), edits=[SwapPositions(0, 4)]))
        return
    swapped = measure(subject, tokens_of(), edits=[SwapPositions(0, 4)])
    assert (measured(name).importance - swapped.importance).abs().max() > 1e-3


@every_family
def test_edits_of_key_weights_reach_keys_alone_or_are_refused(name):
    subject = subject_of(name)
    reads = {part: lambda call, part=part: getattr(call, part).clone() for part in "qkv"}
    plain = subject.run(tokens_of(), reads=reads)
    try:
        edited = subject.run(tokens_of(), reads=reads, edits=[BlindKeys(range(0, 48, 2))])
    except InputError as refusal:
        assert name in (*OTHER_NAMES, "codegen", "mpt", "falcon with one kv head", "falcon with two kv heads")
        assert "are not found; edit its call instead" in str(refusal)
        return
    assert edited["q"][:, 0].equal(plain["q"][:, 0]) and edited["v"][:, 0].equal(plain["v"][:, 0])
    assert (edited["k"][:, 0] - plain["k"][:, 0]).abs().amax((0, 2, 3)).min() > 1e-2


def test_generation_with_a_cache_is_edited_as_one_pass_is():
    for name in ("bloom", "mpt", "gpt-neo", "xglm", "falcon with two kv heads", *OTHER_NAMES):
        model, tokens = model_of(name), tokens_of()[:2]
        edit = RemoveColumn(layers=[1])
        expected = subject_of(name).run(tokens, edits=[edit]).logits[:, -1]
        with torch.no_grad(), patched(model, edit):
            cache = model(tokens[:, :-1], use_cache=True).past_key_values
            logits = model(tokens[:, -1:], past_key_values=cache, use_cache=True).logits[:, -1]
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


def test_falcon_with_sdpa_adds_its_position_bias_once():
    config = copy.deepcopy(CONFIGS["falcon with alibi"])
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    bias = [
        HuggingFaceSubject(m).run(tokens_of(), reads={"bias": lambda call: call.bias[:1, :, -1].expand(5, -1, -1)})
        for m in (model, subject_of("falcon with alibi").model)
    ]
    once, twice = (trace["bias"][0, 0] for trace in bias)
    torch.testing.assert_close(2 * once, twice)


def test_the_window_of_local_attention_is_in_the_mask():
    seen = {"seen": lambda call: call.columns_seen().amax((1, 2)).expand(5)}
    assert subject_of("gpt-neo").run(tokens_of(), reads=seen)["seen"][0].tolist() == [17, 5, 17, 5]


@pytest.mark.filterwarnings("ignore:Module .* has a submodule named 'output'")
@every_family
def test_other_backends_read_the_same_or_name_the_one_that_does(name):
    model, tokens = model_of(name), tokens_of()
    want = measured(name).raw_importance
    for backend in ("nnsight", "transformer_lens"):
        try:
            subject = load(model, backend=backend)
        except InputError as refusal:
            assert "Hugging Face backend" in str(refusal), (backend, str(refusal))
        else:
            torch.testing.assert_close(measure(subject, tokens).raw_importance, want, rtol=0, atol=1e-5)
            assert backend == "transformer_lens"
