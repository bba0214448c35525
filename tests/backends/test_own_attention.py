"""Families whose attention modules compute attention themselves, choose keys, have learned sinks or unlike layers.

All stand beside transformers' own eager patterns.
"""

from dataclasses import dataclass
from functools import cache

import pytest
import torch
import transformers
from backends.zoo import VOCAB, bare_logits, peaked, tokens_of
from refusals import refused

from sinkinterp.attention.sites import RESIDUAL, Edit
from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.backends.load import BACKENDS, load
from sinkinterp.backends.patched import patched
from sinkinterp.checks import InputError
from sinkinterp.interventions.attention_layers import BlindKeys, RemoveColumn
from sinkinterp.interventions.changes import SwapPositions
from sinkinterp.measurement.measure import measure
from sinkinterp.measurement.parity import dense_patterns
from tools import families
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
    for backend in set(BACKENDS) - {"huggingface"}:
        try:
            subject = load(model, backend=backend)
        except InputError as refusal:
            assert "Hugging Face backend" in str(refusal), (backend, str(refusal))
        else:
            torch.testing.assert_close(measure(subject, tokens).raw_importance, want, rtol=0, atol=1e-5)
            assert backend == "transformer_lens"


# sparse attention, learned sinks, several streams

BLOCKS = {"index_block_size": 4, "index_topk_blocks": 2, "layer_types": ["minimax_m3_sparse"] * 4}
CHOOSE_KEYS = ("axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4")
STREAMS = ("hy_v4", "gemma3n_text")
LENGTH = 41  # ten times as many keys as the indexers of these models choose


def long_tokens(sequences=3, length=LENGTH):
    return torch.randint(VOCAB, (sequences, length), generator=torch.Generator().manual_seed(1))


@dataclass(frozen=True)
class AsItIs(Edit):
    """Sets the pattern that is there, and residuals that are there: the model computes everything as an edit does."""

    def call(self, call):
        return call.with_pattern(call.pattern())

    def residual(self, block, x):
        return x.clone()


@pytest.mark.parametrize("family", [*CHOOSE_KEYS, "mimo_v2_flash", "gemma3n_text"])
def test_long_texts_have_the_logits_of_the_bare_model_read_and_edited(family):
    subject, tokens = subject_of(family), long_tokens()
    want = bare_logits(subject.model, tokens)
    for edits in ((), (AsItIs(),)):
        torch.testing.assert_close(subject.run(tokens, edits=edits).logits, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", [*CHOOSE_KEYS, "mimo_v2_flash"])
def test_patterns_are_those_of_eager_attention(family):
    subject, pattern = subject_of(family), {"pattern": lambda call: call.pattern()[..., -LENGTH:]}
    ours = subject.run(long_tokens(), reads=pattern)["pattern"]
    torch.testing.assert_close(ours, dense_patterns(subject.model, long_tokens()), rtol=0, atol=1e-5)
    if family in CHOOSE_KEYS:
        assert ours[:, -1, :, -1].gt(0).sum(-1).max() <= 8  # of 41


@pytest.mark.parametrize("family", ["deepseek_v32", "hy_v4", "mimo_v2_flash"])
def test_generation_with_a_cache_is_edited_as_one_pass_is(family):
    subject, tokens, edit = subject_of(family), long_tokens(), RemoveColumn(positions=[LENGTH - 3])
    want = subject.run(tokens, edits=[edit]).logits[:, -1]
    with torch.no_grad(), patched(subject.model, edit):
        past = subject.model(tokens[:, :-1], use_cache=True).past_key_values
        logits = subject.model(tokens[:, -1:], past_key_values=past, use_cache=True).logits[:, -1]
    torch.testing.assert_close(logits, want, rtol=0, atol=1e-5)
    assert (want - subject.run(tokens).logits[:, -1]).abs().max() > 1e-4


def test_learned_sinks_have_the_weight_that_tokens_lack():
    reads = {"slot": lambda call: call.pattern()[..., :-LENGTH].sum(-1)}
    for family in ("mimo_v2_flash", "hy_v4"):
        subject = subject_of(family)
        slot, theirs = subject.run(long_tokens(), reads=reads)["slot"], dense_patterns(subject.model, long_tokens())
        torch.testing.assert_close(slot, 1 - theirs.sum(-1), rtol=0, atol=1e-5)


def test_families_that_attend_to_blocks_or_summaries_of_tokens_are_refused(monkeypatch):
    monkeypatch.setattr(families, "_MORE", {**families._MORE, "minimax_m3_vl_text": BLOCKS})
    for family, why in {"minimax_m3_vl_text": "blocks of keys", "deepseek_v4": "summaries of many tokens"}.items():
        refused(lambda family=family: HuggingFaceSubject(families.tiny_model(family), family), why)


def test_layers_with_fewer_kv_heads_are_read_with_as_many_as_the_others():
    subject = subject_of("mimo_v2_flash")
    keys = subject.run(long_tokens(), reads={"k": lambda call: call.k})["k"]
    repeats = [keys[:, i, 0].equal(keys[:, i, 1]) for i in range(keys.shape[1])]
    assert subject.shape.n_kv_heads == keys.shape[2] == 4 and {True, False} == set(repeats)


@pytest.mark.parametrize("family", STREAMS)
def test_several_streams_are_one_residual_side_by_side(family):
    subject, tokens = subject_of(family), long_tokens(4, 4)  # as many as streams, so no axis is told by its size
    x = subject.run(tokens, reads={"x": RESIDUAL.read(lambda x: x)})["x"][:, 0]
    embedded = subject.model.get_input_embeddings()(tokens)
    streams = x.unflatten(-1, (4, -1))
    assert subject.shape.d_model == x.shape[-1] == 4 * embedded.shape[-1]
    torch.testing.assert_close(streams[..., 0, :], embedded)
    want = bare_logits(subject.model, tokens)
    torch.testing.assert_close(subject.run(tokens, edits=[AsItIs()]).logits, want, rtol=0, atol=1e-5)
