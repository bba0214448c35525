"""Generation inside si.patched: what whole passes of each sequence alone give, whatever cache is used.

Positions are those of the text, also where a model's last layers are given fewer rows, or keys of other layers.
"""

import pytest
import torch
from backends import test_own_attention as own
from backends.zoo import VOCAB, model_of
from refusals import refused

import sinkinterp as si
from sinkinterp import interventions as iv
from sinkinterp.attention import CALL
from sinkinterp.attention.kernels import Sigmoid
from sinkinterp.backends.recorder import Recorder
from sinkinterp.checks import InputError
from sinkinterp.interventions.attention_layers import KeepHeaviest
from sinkinterp.interventions.changes import MatchedNoise

NAMES = ("gpt2", "mistral with a window", "gemma3", "gpt-oss with sink logits")
EDITS = (
    (
        iv.BiasColumn(2.0, positions=[0, 2]), iv.ChangeValues(iv.Scale(3.0), positions=[0, 2]),
        iv.ChangeResidual(iv.Scale(4.0), layers=[1], positions=[0]), iv.ChangeOutputs(iv.Scale(2.0), positions=[1]),
    ),
    (
        si.PatchNormalization(Sigmoid(), layers=[1]), iv.RemoveColumn(positions=[0], layers=[2]),
        iv.ChangeMLP(iv.Scale(0.5)), iv.SwapPositions(0, 2),
    ),
)  # fmt: skip
PADDED = torch.randint(1, VOCAB, (3, 7), generator=torch.Generator().manual_seed(2))
MASK = torch.ones_like(PADDED)
MASK[1, :2], MASK[2, :3] = 0, 0
WAYS = {
    "dynamic": {},
    "static": {"cache_implementation": "static"},
    "in chunks": {"prefill_chunk_size": 6},
    "beams": {"num_beams": 2},
    "static beams": {"num_beams": 2, "cache_implementation": "static"},
    "sampled": {"do_sample": True, "top_k": 5},
}


def generated(model, ids, mask, new=7, **how):
    torch.manual_seed(3)
    how = {"do_sample": False, "output_logits": True, "return_dict_in_generate": True, "pad_token_id": 0} | how
    return model.generate(ids, attention_mask=mask, max_new_tokens=new, **how)


@torch.no_grad()
def assert_equal_to_whole_passes(model, output, mask, n_beams=1):
    """Every chosen token's logits are those of its text in one pass, alone, without a cache."""
    for row, text in enumerate(output.sequences):
        start = int((mask[row] == 0).sum())
        whole = model(text[None, start:-1], use_cache=False).logits[0, mask.shape[1] - start - 1 :]
        if n_beams > 1:
            found = output.beam_indices[row]
            seen = [output.logits[step][int(beam)] for step, beam in enumerate(found) if beam >= 0]
        else:
            seen = [logits[row] for logits in output.logits]
        torch.testing.assert_close(torch.stack(seen), whole[: len(seen)], rtol=0, atol=2e-4)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_padded_generation_is_what_whole_passes_of_each_sequence_give(name, way):
    """Every model and every way meets both sets of edits."""
    model, edits = model_of(name), EDITS[(NAMES.index(name) + list(WAYS).index(way)) % 2]
    with si.patched(model, *edits):
        output = generated(model, PADDED, MASK, **WAYS[way])
        assert_equal_to_whole_passes(model, output, MASK, WAYS[way].get("num_beams", 1))


@pytest.mark.parametrize(("name", "edit"), [
    *(("mistral with a window", edit) for edit in (
        iv.ChangeValues(iv.MeanOfOthers()), iv.ChangeResidual(MatchedNoise(), layers=[1]),
        iv.ChangeKeys(iv.SwapWith(2, 5)), KeepHeaviest(4, 2))),
    ("gemma4 with shared keys", iv.ChangeValues(iv.MeanOfOthers(), layers=[4])),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("way", ["dynamic", "static"])
def test_what_a_later_pass_cannot_do_is_refused_before_the_first_token(name, edit, way):
    model = model_of(name)
    passes = []
    with si.patched(model, edit), pytest.raises(InputError, match=r"use_cache=False|in one pass"):
        model.register_forward_hook(lambda *_: passes.append(1))
        generated(model, PADDED[:1], MASK[:1], **WAYS[way])
    assert not passes
    with si.patched(model, edit):
        generated(model, PADDED[:1], MASK[:1], use_cache=False)  # the fix


# MVP and RoFormer count padding among positions, also without edits
# with a static cache, transformers refuses Falcon with ALiBi, and GPT-Neo's window is wrong without edits too
UNPADDED = ("mvp", "roformer with rotated values")
OWN = [(name, way) for name in own.NAMES for way in ("dynamic", "static")]
OWN = [one for one in OWN if one not in (("falcon with alibi", "static"), ("gpt_neo", "static"))]


@pytest.mark.parametrize(("name", "way"), OWN)
def test_families_with_attention_of_their_own_generate_as_whole_passes_do(name, way):
    model, rows = own.model_of(name), slice(1 if name in UNPADDED else 3)  # the first text has no padding
    with si.patched(model, *EDITS[0]):
        output = generated(model, PADDED[rows], MASK[rows], new=4, **WAYS[way])
        assert_equal_to_whole_passes(model, output, MASK[rows])


@pytest.mark.parametrize("way", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["llama", "mistral with a window", "gpt-oss with sink logits"])
@torch.no_grad()
def test_patterns_behind_padding_and_caches_are_those_of_whole_passes(name, way):
    model = model_of(name)
    model.set_attn_implementation("eager")
    for edits in EDITS:
        with si.patched(model, *edits):
            output = generated(model, PADDED, MASK, output_attentions=True, **WAYS[way])
            for row, text in enumerate(output.sequences):
                start = int((MASK[row] == 0).sum())
                whole = model(text[None, start:-1], use_cache=False, output_attentions=True).attentions
                for n, patterns in enumerate(output.attentions, MASK.shape[1]):
                    for pattern, right in zip(patterns, whole, strict=True):
                        assert_same_weights(pattern[row, :, -1], right[0, :, n - start - 1, : n - start], n, start)


def assert_same_weights(pattern, right, n, start):
    """On the keys that the cache has: a sliding one the last, a static one also room for later ones."""
    first = max(n - pattern.shape[-1], 0)
    kept = max(first, start)
    torch.testing.assert_close(pattern[:, kept - first : n - first], right[:, kept - start :], rtol=0, atol=2e-4)
    assert pattern[:, n - first :].eq(0).all() and pattern[:, : kept - first].eq(0).all()


@pytest.mark.parametrize(("mask", "how", "words"), [
    (MASK, {}, "sequence 2 has 4 tokens when its first pass ends"),
    (torch.ones_like(MASK), {"prefill_chunk_size": 3}, "sequence 0 has 3 tokens when its first pass ends"),
])  # fmt: skip
def test_a_position_that_a_sequence_lacks_is_refused_by_the_sequence(mask, how, words):
    model = model_of("llama")
    with si.patched(model, iv.ChangeValues(iv.Zero(), positions=[5])), pytest.raises(InputError, match=words):
        generated(model, PADDED, mask, **how)


@torch.no_grad()
def test_a_cache_from_before_the_block_keeps_what_it_holds_as_with_hooks_in_plain_torch():
    model = model_of("llama with grouped queries")
    d_head, output_map = model.config.head_dim, model.model.layers[1].self_attn.o_proj

    def without_head_2(module, args):
        z = args[0].clone()
        z[..., 2 * d_head : 3 * d_head] = 0
        return (z,)

    cache = model(PADDED[:, :4], use_cache=True).past_key_values
    handle = output_map.register_forward_pre_hook(without_head_2)
    expected = model(PADDED[:, 4:], past_key_values=cache).logits
    handle.remove()
    cache = model(PADDED[:, :4], use_cache=True).past_key_values
    with si.patched(model, iv.ChangeOutputs(iv.Zero(), heads=[(1, 2)])):
        edited = model(PADDED[:, 4:], past_key_values=cache).logits
    torch.testing.assert_close(edited, expected, rtol=0, atol=1e-6)


SHARED_EDITS = (
    iv.ChangeOutputs(iv.Zero(), layers=[5], positions=[0]),
    iv.ChangeResidual(iv.Scale(4.0), layers=[5], positions=[0, 3]),
    iv.ChangeValues(iv.Scale(3.0), layers=[2], positions=[0, 2]),
)


@pytest.fixture
def sharing():
    """The last layers take the keys and values of earlier ones."""
    return model_of("gemma4 with shared keys")


@torch.no_grad()
def test_logits_of_the_last_positions_alone_are_edited_as_those_of_all(sharing):
    for model in (sharing, model_of("llama")):
        for edit in SHARED_EDITS if model is sharing else (iv.ChangeOutputs(iv.Zero(), layers=[2], positions=[0]),):
            with si.patched(model, edit):
                whole = model(PADDED).logits
                for kept in (1, 3, 99, torch.tensor([0, 4])):
                    rows = kept if isinstance(kept, torch.Tensor) else slice(-kept, None)
                    part = model(PADDED, logits_to_keep=kept).logits
                    torch.testing.assert_close(part, whole[:, rows], rtol=0, atol=1e-5)


def test_a_model_whose_layers_share_keys_is_measured_and_says_so(sharing):
    subject = si.load(sharing)
    assert subject.key_sources == {4: 2, 5: 3}
    assert "layer 4 takes the keys and values of layer 2" in str(vars(si.measure(subject, PADDED)))
    keys = subject.run(PADDED, reads={"k": CALL.read(lambda call: call.k.sum((1, 2, 3)))}, logits=False)["k"]
    assert keys[:, 4].equal(keys[:, 2]) and not keys[:, 4].equal(keys[:, 3])
    refused(lambda: subject.run(PADDED, edits=[iv.ZeroKeyBias()]), "layer 4")
    assert not si.load(model_of("llama")).key_sources


@pytest.mark.parametrize("how", [{}, {"cache_implementation": "static"}, {"num_beams": 2}], ids=str)
@torch.no_grad()
def test_what_it_writes_in_a_block_is_what_whole_passes_give(sharing, how):
    for edits in (SHARED_EDITS[:2], SHARED_EDITS[2:]):
        with si.patched(sharing, *edits):
            output = generated(sharing, PADDED, MASK, **how)
            assert_equal_to_whole_passes(sharing, output, MASK, how.get("num_beams", 1))


def test_blocks_that_lose_rows_on_their_way_are_refused():
    recorder = Recorder()
    recorder.residual(torch.ones(2, 7, 3))
    refused(lambda: recorder.residual(torch.ones(2, 1, 3)), "1 rows")
