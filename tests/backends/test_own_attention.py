"""Families whose attention modules compute attention themselves, beside transformers' own eager patterns."""

from functools import cache

import pytest
import torch
import transformers
from backends.zoo import VOCAB, peaked, tokens_of
from refusals import refused

from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.backends.load import load
from sinkinterp.checks import InputError
from sinkinterp.interventions.attention_layers import BlindKeys
from sinkinterp.interventions.changes import SwapPositions
from sinkinterp.measurement.measure import measure
from sinkinterp.measurement.parity import dense_patterns
from tools.families import tiny_model

SIZES = {"vocab_size": VOCAB, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
VARIANTS = {
    "falcon with alibi": transformers.FalconConfig(
        **SIZES, alibi=True, multi_query=False, new_decoder_architecture=False, parallel_attn=False, bias=True,
        attn_implementation="eager",
    ),
    "falcon with two kv heads": transformers.FalconConfig(**SIZES, num_kv_heads=2, new_decoder_architecture=True),
    "roformer with rotated values": transformers.RoFormerConfig(
        **SIZES, intermediate_size=40, max_position_embeddings=64, is_decoder=True, rotary_value=True
    ),
}  # fmt: skip
NAMES = (
    "bloom", "codegen", "diffllama", "falcon", "gptj", "gpt_neo", "gpt_neox_japanese", "mvp", "openai-gpt", "mpt",
    "xglm", *VARIANTS,
)  # fmt: skip
KV_HEADS = dict.fromkeys(NAMES, 4) | {"falcon": 1, "falcon with two kv heads": 2, "diffllama": 2}
WITH_ALIBI = {"bloom", "mpt", "falcon with alibi"}
SHARP = ("q_proj", "k_proj", "query_key_value", "qkv", "c_attn", "wpe")
OTHER_NAMES = ("diffllama", "gpt_neox_japanese", "mvp", "roformer with rotated values")  # their parts have
every_family = pytest.mark.parametrize("name", NAMES)


def model_of(name):
    if name not in VARIANTS:
        return tiny_model(name)
    torch.manual_seed(0)
    return peaked(transformers.AutoModelForCausalLM.from_config(VARIANTS[name]).eval(), SHARP)


subject_of = cache(lambda name: HuggingFaceSubject(model_of(name)))
measured = cache(lambda name: measure(subject_of(name), tokens_of()))


@every_family
def test_importance_is_that_of_dense_eager_attention(name):
    patterns, report = dense_patterns(subject_of(name).model, tokens_of()), measured(name)
    want = patterns.sum(-2) / patterns.ne(0).sum(-2)
    torch.testing.assert_close(report.raw_importance, want, rtol=0, atol=1e-5)
    assert report.key_norms.shape[2] == KV_HEADS[name]


@every_family
def test_only_alibi_is_a_bias_of_the_scores(name):
    biased = {"biased": lambda call: torch.full(call.q.shape[:1], call.bias is not None)}
    assert subject_of(name).run(tokens_of(), reads=biased)["biased"].eq(name in WITH_ALIBI).all()


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
        assert name in (*OTHER_NAMES, "codegen", "mpt", "falcon", "falcon with two kv heads")
        assert "are not found; edit its call instead" in str(refusal)
        return
    assert edited["q"][:, 0].equal(plain["q"][:, 0]) and edited["v"][:, 0].equal(plain["v"][:, 0])
    assert (edited["k"][:, 0] - plain["k"][:, 0]).abs().amax((0, 2, 3)).min() > 1e-2


def test_the_window_of_local_attention_is_in_the_mask():
    seen = {"seen": lambda call: call.columns_seen().amax((1, 2)).expand(5)}
    assert subject_of("gpt_neo").run(tokens_of(), reads=seen)["seen"][0].tolist() == [17, 5, 17, 5]


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
