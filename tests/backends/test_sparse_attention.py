"""Families with learned sinks and sparse attention, several residual streams, or layers of unlike kv heads."""

from dataclasses import dataclass
from functools import cache

import pytest
import torch
from backends.zoo import VOCAB, bare_logits
from refusals import refused

from sinkinterp.attention.sites import RESIDUAL, Edit
from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.backends.patched import patched
from sinkinterp.interventions.attention_layers import RemoveColumn
from sinkinterp.measurement.parity import dense_patterns
from tools import families

BLOCKS = {"index_block_size": 4, "index_topk_blocks": 2, "layer_types": ["minimax_m3_sparse"] * 4}
CHOOSE_KEYS = ("axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4")
STREAMS = ("hy_v4", "gemma3n_text")
LENGTH = 41  # ten times as many keys as the indexers of these models choose


@cache
def subject_of(family):
    return HuggingFaceSubject(families.tiny_model(family), family)


def tokens_of(sequences=3, length=LENGTH):
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
    subject, tokens = subject_of(family), tokens_of()
    want = bare_logits(subject.model, tokens)
    for edits in ((), (AsItIs(),)):
        torch.testing.assert_close(subject.run(tokens, edits=edits).logits, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", [*CHOOSE_KEYS, "mimo_v2_flash"])
def test_patterns_are_those_of_eager_attention(family):
    subject, pattern = subject_of(family), {"pattern": lambda call: call.pattern()[..., -LENGTH:]}
    ours = subject.run(tokens_of(), reads=pattern)["pattern"]
    torch.testing.assert_close(ours, dense_patterns(subject.model, tokens_of()), rtol=0, atol=1e-5)
    if family in CHOOSE_KEYS:
        assert ours[:, -1, :, -1].gt(0).sum(-1).max() <= 8  # of 41


@pytest.mark.parametrize("family", ["deepseek_v32", "hy_v4", "mimo_v2_flash"])
def test_generation_with_a_cache_is_edited_as_one_pass_is(family):
    subject, tokens, edit = subject_of(family), tokens_of(), RemoveColumn(positions=[LENGTH - 3])
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
        slot, theirs = subject.run(tokens_of(), reads=reads)["slot"], dense_patterns(subject.model, tokens_of())
        torch.testing.assert_close(slot, 1 - theirs.sum(-1), rtol=0, atol=1e-5)


def test_families_that_attend_to_blocks_or_summaries_of_tokens_are_refused(monkeypatch):
    monkeypatch.setattr(families, "_MORE", {**families._MORE, "minimax_m3_vl_text": BLOCKS})
    for family, why in {"minimax_m3_vl_text": "blocks of keys", "deepseek_v4": "summaries of many tokens"}.items():
        refused(lambda family=family: HuggingFaceSubject(families.tiny_model(family), family), why)


def test_layers_with_fewer_kv_heads_are_read_with_as_many_as_the_others():
    subject = subject_of("mimo_v2_flash")
    keys = subject.run(tokens_of(), reads={"k": lambda call: call.k})["k"]
    repeats = [keys[:, i, 0].equal(keys[:, i, 1]) for i in range(keys.shape[1])]
    assert subject.shape.n_kv_heads == keys.shape[2] == 4 and {True, False} == set(repeats)


@pytest.mark.parametrize("family", STREAMS)
def test_several_streams_are_one_residual_side_by_side(family):
    subject, tokens = subject_of(family), tokens_of(4, 4)  # as many as streams, so no axis is told by its size
    x = subject.run(tokens, reads={"x": RESIDUAL.read(lambda x: x)})["x"][:, 0]
    embedded = subject.model.get_input_embeddings()(tokens)
    streams = x.unflatten(-1, (4, -1))
    assert subject.shape.d_model == x.shape[-1] == 4 * embedded.shape[-1]
    torch.testing.assert_close(streams[..., 0, :], embedded)
    want = bare_logits(subject.model, tokens)
    torch.testing.assert_close(subject.run(tokens, edits=[AsItIs()]).logits, want, rtol=0, atol=1e-5)
