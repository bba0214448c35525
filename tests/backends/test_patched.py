"""si.patched: a model stays edited while its user runs it, and is exactly as it was afterwards."""

import pytest
import torch
from backends.zoo import CONFIGS, LEARNED_POSITIONS, VOCAB, model_of, tokens_of

import sinkinterp as si
from sinkinterp.attention.kernels import Sigmoid
from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.errors import InputError
from sinkinterp.interventions import (
    ChangeMLP,
    ChangeResidual,
    ChangeValues,
    MatchedNoise,
    MeanOfOthers,
    Scale,
    SetTo,
    SwapPositions,
    Temperature,
    Zero,
    ZeroQueryBias,
)  # fmt: skip

TOKENS = tokens_of()
WINDOWED = ("mistral with a window", "gemma3", "gemma2 with softcap", "gpt-oss with sink logits")
EDITS = (
    si.PatchNormalization(Sigmoid(), layers=[1]),
    ChangeMLP(Scale(0.5), positions=[0, 3]),
    ChangeValues(Zero(), positions=[0]),
    ChangeResidual(Scale(2.0), positions=[2]),
)


def edits_of(name):
    return (*EDITS, SwapPositions(0, 4)) if name in LEARNED_POSITIONS else EDITS


def state_of(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def is_untouched(model, state, implementation):
    hooks = [h for m in model.modules() for h in (*m._forward_hooks, *m._forward_pre_hooks)]
    same = all(state[name].equal(value) for name, value in model.state_dict().items())
    return same and not hooks and model.config._attn_implementation == implementation


@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_a_patched_model_computes_what_a_measurement_with_the_same_edits_does(name):
    model = model_of(name)
    bare, state, implementation = model(TOKENS).logits, state_of(model), model.config._attn_implementation
    with si.patched(model, *edits_of(name)) as same:
        assert same is model
        edited = model(TOKENS).logits
    measured = HuggingFaceSubject(model).run(TOKENS, edits=edits_of(name)).logits
    torch.testing.assert_close(edited, measured, rtol=0, atol=1e-6)
    assert (edited - bare).abs().max() > 1e-3
    assert model(TOKENS).logits.equal(bare) and is_untouched(model, state, implementation)


@pytest.mark.parametrize("name", sorted(set(CONFIGS) - set(WINDOWED)))
@torch.no_grad()
def test_token_by_token_through_a_cache_edits_meet_the_positions_of_a_whole_pass(name):
    model = model_of(name)
    with si.patched(model, *edits_of(name)):
        whole = model(TOKENS).logits
        step = model(TOKENS[:, :7], use_cache=True)
        logits = [step.logits]
        for i in range(7, TOKENS.shape[1]):
            step = model(TOKENS[:, i : i + 1], past_key_values=step.past_key_values, use_cache=True)
            logits.append(step.logits)
    torch.testing.assert_close(torch.cat(logits, 1), whole, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", WINDOWED)
@torch.no_grad()
def test_a_cache_that_has_forgotten_the_first_keys_is_refused(name):
    model = model_of(name)
    with (
        si.patched(model, ChangeValues(Zero(), positions=[0])),
        pytest.raises(InputError, match="set use_cache=False"),
    ):
        step = model(TOKENS[:, :9], use_cache=True)
        model(TOKENS[:, 9:10], past_key_values=step.past_key_values, use_cache=True)


@torch.no_grad()
def test_generation_is_edited():
    model = model_of("gpt2")
    only_five = ChangeResidual(SetTo(0.0), layers=[3])  # zero before the last norm: its bias alone chooses the token
    with si.patched(model, only_five):
        generated = model.generate(TOKENS[:, :3], max_new_tokens=4, do_sample=False)
    favourite = (model.transformer.ln_f.bias @ model.lm_head.weight.T).argmax()
    assert generated[:, 3:].eq(favourite).all()


@pytest.mark.parametrize("operation", [MatchedNoise(), MeanOfOthers()])
def test_an_edit_that_reads_all_positions_is_refused_where_a_cache_holds_the_earlier_ones(operation):
    model = model_of("llama")
    with si.patched(model, ChangeResidual(operation, layers=[1])):
        with pytest.raises(InputError, match="a cache does not keep them; generate with use_cache=False"):
            model.generate(TOKENS[:, :3], max_new_tokens=3, do_sample=False)
        model.generate(TOKENS[:, :3], max_new_tokens=3, do_sample=False, use_cache=False)


@torch.no_grad()
def test_blocks_nest_and_end_one_by_one():
    model, state = model_of("gpt2"), state_of(model_of("gpt2"))
    implementation = model.config._attn_implementation
    bare = model(TOKENS).logits
    outer, inner = (
        (Temperature(3.0), ZeroQueryBias(layers=[0])),
        (ChangeMLP(Zero(), layers=[1]), ZeroQueryBias(layers=[1])),
    )
    with si.patched(model, *outer):
        first = model(TOKENS).logits
        with si.patched(model, *inner):
            both = model(TOKENS).logits
        assert model(TOKENS).logits.equal(first)
    measured = HuggingFaceSubject(model).run(TOKENS, edits=(*outer, *inner)).logits
    torch.testing.assert_close(both, measured, rtol=0, atol=1e-6)
    assert model(TOKENS).logits.equal(bare) and is_untouched(model, state, implementation)


@pytest.mark.parametrize("name", ["gpt2", "pythia", "gpt-oss with sink logits"])
def test_an_exception_leaves_the_model_as_it_was(name):
    model = model_of(name)
    state, implementation = state_of(model), model.config._attn_implementation
    for edits in ((ZeroQueryBias(), EDITS[0]), (ChangeResidual(SetTo(3e38)),)):
        with pytest.raises((KeyError, InputError)), si.patched(model, *edits):
            model(TOKENS)
            raise KeyError
        assert is_untouched(model, state, implementation)


def test_gradients_pass_through_an_edited_model_as_through_one_that_was_built_so():
    model = model_of("gpt2")
    with si.patched(model, ChangeMLP(Scale(0.5), layers=[1])):
        model(TOKENS).logits.logsumexp(-1).sum().backward()
    edited = model.transformer.h[0].attn.c_attn.weight.grad.clone()
    model.zero_grad()
    with torch.no_grad():
        for parameter in model.transformer.h[1].mlp.c_proj.parameters():
            parameter.mul_(0.5)
    model(TOKENS).logits.logsumexp(-1).sum().backward()
    torch.testing.assert_close(edited, model.transformer.h[0].attn.c_attn.weight.grad, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_patched_is_refused_in_one_line_and_nothing_is_changed():
    model, state = model_of("gpt2"), state_of(model_of("gpt2"))
    implementation = model.config._attn_implementation
    refused = {
        "at least one edit": (model,),
        "no layer 7": (model, ZeroQueryBias(layers=[1]), Temperature(2.0, layers=[7])),
        "takes a transformers model": (torch.nn.Linear(3, 3), Temperature(2.0)),
        "no such bias": (model_of("llama"), ZeroQueryBias()),
    }
    for words, (one, *edits) in refused.items():
        with pytest.raises(InputError, match=words) as caught, si.patched(one, *edits):
            one(TOKENS)
        assert "\n" not in str(caught.value)
    padded = torch.ones_like(TOKENS)
    padded[0, 0] = 0
    with si.patched(model, Temperature(2.0)), pytest.raises(InputError, match="takes no padding"):
        model(TOKENS, attention_mask=padded)
    assert is_untouched(model, state, implementation) and model.config.vocab_size == VOCAB
